import { fieldError } from '@floe-rl/core';
import { ONLY_USERS, type RuntimeBackend, type RuntimeSpec } from '@floe-rl/core/schema';

/** Back ends that run commands as any user of the image. */
const BACKENDS_WITH_USERS: readonly RuntimeBackend[] = ['docker', 'podman'];

/** Throws `unsupported` for a user that the sandboxes of a back end do not have. */
export function refuseUser(backend: RuntimeBackend, { user }: Pick<RuntimeSpec, 'user'>): void {
  if (user === null || BACKENDS_WITH_USERS.includes(backend)) return;
  const only = ONLY_USERS[backend];
  if (user === only || (only === 'root' && user === 0)) return;
  const message = `is ${user}, and a sandbox of ${backend} has only ${only === undefined ? 'one user' : `the user ${only}`}`;
  throw fieldError('runtime.user', message, { code: 'unsupported', details: { path: 'runtime.user' } });
}
