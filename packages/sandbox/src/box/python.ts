import type { Dialect } from './interpreter.ts';
import { findProgram, type ProcessSettings } from './programs.ts';
import { PYTHON_PROGRAM } from './python-program.ts';
import { MAX_OUTCOME_BYTES } from './tool-messages.ts';

/** Returns how Python is run. Throws a {@link ToolError} when it cannot be run. */
export function pythonDialect(settings: ProcessSettings): Dialect {
  const { program, env, cwd } = settings;
  const path = findProgram(program === null ? ['python3', 'python'] : [program], env, cwd);
  return {
    ...settings,
    argv: [...settings.prefix, path, '-c', PYTHON_PROGRAM],
    env: { ...env, ...settings.marks },
    isTerminal: false,
    readsControl: true,
    readsAhead: false,
    maxDetailBytes: MAX_OUTCOME_BYTES,
    setUp: Buffer.alloc(0),
    begin: (nonce, code) => Buffer.concat([Buffer.from(`${nonce} ${code.length}\n`), code]),
    finish: () => null,
  };
}
