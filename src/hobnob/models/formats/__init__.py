"""Wire formats of model providers, one module each: `build_request` writes, `Reader` reads the answer."""
