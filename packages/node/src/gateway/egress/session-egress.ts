import { FloeError, type HostPatterns } from '@floe-rl/core';
import type { EgressReport, RuntimeSpec } from '@floe-rl/core/schema';
import type { Logger } from '@floe-rl/observe';
import { EgressProxy, type EgressProxyOptions } from './egress-proxy.ts';

/** Maximum number of refused requests of a session that are logged. A sandbox can send any number of them. */
const MAX_LOGGED_REFUSALS = 20;

/** The egress proxy of a session, which serves both of its sandboxes. */
export type SessionEgress = {
  readonly socketPath: string;
  report(): EgressReport;
  close(): Promise<void>;
};

/**
 * Opens the egress proxy of a session with the network `proxy` or `allowlist`; resolves with `null` for other networks. `nodeHosts` are the
 * hosts that the node allows. Rejects with `unsupported` when it allows none.
 */
export async function openSessionEgress(
  { network, allowed_hosts }: Pick<RuntimeSpec, 'network' | 'allowed_hosts'>,
  nodeHosts: HostPatterns | null,
  {
    socketPath,
    log,
    names,
    lookup,
  }: Pick<EgressProxyOptions, 'socketPath' | 'lookup'> & {
    readonly log: Logger;
    /** Names of the session in log lines. */
    readonly names: object;
  },
): Promise<SessionEgress | null> {
  if (network !== 'proxy' && network !== 'allowlist') return null;
  if (nodeHosts?.length === 0) {
    throw new FloeError(
      'unsupported',
      `runtime.network: this node lets sandboxes reach no host; its operator can list hosts in node.egress_hosts`,
    );
  }
  let refusals = 0;
  const proxy = await EgressProxy.open({
    socketPath,
    rules: { node: nodeHosts, task: network === 'allowlist' ? allowed_hosts : null },
    onRequest: ({ target, refusal }) => {
      if (refusal === null) log.debug({ ...names, target }, 'a sandbox sends a request to a host');
      else if (++refusals <= MAX_LOGGED_REFUSALS)
        log.info({ ...names, target, refusal }, 'a request of a sandbox is refused');
    },
    ...(lookup === undefined ? {} : { lookup }),
  });
  return { socketPath, report: () => proxy.counts(), close: () => proxy.close() };
}
