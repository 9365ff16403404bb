"""What neonize calls its native part by."""

import ctypes
import os

from tests.channels.whatsapp_web_native import Native

func_string = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
func_callback_bytes = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
func_callback_bytes2 = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)
ProxySettings = type(None)  # none are used
gocode = Native(os.environ["FAKE_WHATSAPP_WEB"])
