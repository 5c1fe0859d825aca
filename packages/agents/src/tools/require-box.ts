import { FloeError } from '@floe-rl/core';
import type { Box } from './tool.ts';

/** Returns the sandbox. Throws `unsupported` for a session without one. */
export function requireBox(tool: string, box: Box | null): Box {
  if (box !== null) return box;
  const message = `the tool ${tool} works in a sandbox, and the session has none; choose another runtime.backend than none`;
  throw new FloeError('unsupported', `runtime.backend: ${message}`, { path: 'runtime.backend' });
}
