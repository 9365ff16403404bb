from hypothesis import settings

# The machine is shared: a slow example is no finding.
settings.register_profile("hobnob", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=3000)
settings.load_profile("hobnob")
