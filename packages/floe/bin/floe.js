#!/usr/bin/env node
// Starts the compiled command line. This file exists before it is compiled, so that npm links the command `floe` when it installs.
import '../dist/commands/main.js';
