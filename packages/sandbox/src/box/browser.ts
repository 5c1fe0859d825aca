import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Dialect } from './interpreter.ts';
import { findProgram, type ProcessSettings } from './programs.ts';
import { MAX_OUTCOME_BYTES } from './tool-messages.ts';

/**
 * Usual places and names of Chromium. The programs come before the scripts that start them, because the scripts of some distributions need
 * files in `/etc`, which a sandbox may lack.
 */
const NAMES = [
  '/usr/lib/chromium/chromium',
  '/usr/lib64/chromium-browser/chromium-browser',
  ...['chromium', 'chromium-browser', 'chrome-headless-shell', 'google-chrome', 'google-chrome-stable', 'chrome'],
];
/** The program that operates a browser. This module runs as part of the box server, which is bundled beside that program. */
const PROGRAM = fileURLToPath(new URL('./browser.js', import.meta.url));
const NODE_FLAGS = ['--max-semi-space-size=2', '--max-old-space-size=320', '--no-warnings'];

/** Returns how the program that operates a browser is run. Throws a {@link ToolError} when the sandbox has no browser. */
export function browserDialect(settings: ProcessSettings): Dialect {
  const { program, env, cwd } = settings;
  const browser = findProgram(program === null ? NAMES : [program], env, cwd);
  return {
    ...settings,
    argv: [...settings.prefix, ...nodeArgv(), PROGRAM, browser],
    env: { ...env, ...settings.marks },
    isTerminal: false,
    readsControl: true,
    readsAhead: false,
    maxDetailBytes: MAX_OUTCOME_BYTES,
    setUp: Buffer.alloc(0),
    begin: (nonce, request) => Buffer.concat([Buffer.from(`${nonce} ${request.length}\n`), request]),
    finish: () => null,
  };
}

/** Returns the command that runs Node in the sandbox. When a dynamic loader started Node, the loader is the program of this process. */
function nodeArgv(): string[] {
  const own = readFileSync('/proc/self/cmdline', 'utf8').split('\0');
  const options = own.findIndex((argument, index) => index > 0 && argument.startsWith('--max-'));
  return [...(options < 0 ? [process.execPath] : own.slice(0, options)), ...NODE_FLAGS];
}
