"""Tests. A package, because a dependency of a dependency installs one of the same name."""
