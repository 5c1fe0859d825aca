import type { RuntimeBackend } from '@floe-rl/core/schema';

const UNKNOWN_CALL =
  'the filter library of the engine may not know the newest system calls; the kernel refuses them without CAP_SYS_ADMIN';

/** Actions that a runtime cannot prevent on this kind of host, by probe, with the reason. docs/runtimes.md names them for operators. */
const WEAKNESSES: Partial<Readonly<Record<RuntimeBackend, Readonly<Record<string, string>>>>> = {
  docker: { 'change mounts': UNKNOWN_CALL },
  podman: { 'change mounts': UNKNOWN_CALL },
  apptainer: {
    'change mounts': UNKNOWN_CALL,
    'create or enter namespaces': 'Apptainer cannot deny clone3 without preventing threads',
  },
};

/** Returns why a runtime cannot prevent what a probe does; `null` when it must prevent it. */
export function weaknessOf(backend: RuntimeBackend, probe: string): string | null {
  return WEAKNESSES[backend]?.[probe] ?? null;
}
