import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { hostname } from 'node:os';
import { ServerList } from '@floe-rl/client';
import { FloeError } from '@floe-rl/core';

/**
 * Returns the address from which this machine sends packets to the first rollout server in `servers`. Sends no packet. Returns the host
 * name when the address cannot be determined, for example because the name of the server does not resolve.
 */
export async function ownAddress(servers: string): Promise<string> {
  const url = firstServer(servers);
  if (url === null) return hostname();
  const { hostname: server, port, protocol } = new URL(url);
  const host = server.replace(/^\[|\]$/g, '');
  const socket = createSocket(host.includes(':') ? 'udp6' : 'udp4');
  try {
    socket.connect(Number(port) || (protocol === 'https:' ? 443 : 80), host);
    await once(socket, 'connect');
    return socket.address().address;
  } catch {
    return hostname();
  } finally {
    socket.close();
  }
}

/** Returns the URL of the first server; `null` when `servers` names a folder in which servers register and the folder is empty. */
function firstServer(servers: string): string | null {
  try {
    return new ServerList(servers).current().origin;
  } catch (error) {
    if (FloeError.is(error) && error.code === 'peer_unreachable') return null;
    throw error;
  }
}
