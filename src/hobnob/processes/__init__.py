"""Programs of agents: started, supervised, and ended with everything they started."""

from hobnob.processes.service import Processes, Program, open_processes

__all__ = ["Processes", "Program", "open_processes"]
