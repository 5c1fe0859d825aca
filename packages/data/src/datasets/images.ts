/** Processor architectures for which images of SWE-bench are published. */
export const ARCHITECTURES = ['x86_64', 'arm64'] as const;
export type Architecture = (typeof ARCHITECTURES)[number];

/**
 * Returns the name of the published image of a row of SWE-bench, as the package `swebench` makes it. Names on Docker Hub must not contain two
 * underscores in sequence, so `__` is written `_1776_`.
 */
export function sweBenchImage(instanceId: string, architecture: Architecture, namespace = 'swebench'): string {
  const name = `sweb.eval.${architecture}.${instanceId.toLowerCase()}`;
  return `${namespace}/${name}:latest`.replaceAll('__', '_1776_');
}

/** Returns the name of the published image of a row of SWE-Gym, which OpenHands made: `__` is written `_s_`. */
export function sweGymImage(instanceId: string, namespace = 'xingyaoww'): string {
  return `${namespace}/sweb.eval.x86_64.${instanceId.replaceAll('__', '_s_')}`.toLowerCase();
}
