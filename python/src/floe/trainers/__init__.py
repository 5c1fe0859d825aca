"""One module for each trainer, which plugs into that trainer's own hook. A module imports its trainer, so import the one that you use."""
