import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { hostname } from 'node:os';
import { ServerList } from '../../client/server-list.ts';
import { FloeError } from '../../core/errors.ts';

/**
 * Returns the address from which this machine sends packets to a rollout server; when `servers` lists several, to the first of them. No
 * packet is sent to find it. Returns the host name when the address cannot be determined, for example because the server's name does not
 * resolve.
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

/** Returns the URL of the first server; `null` while the folder in which servers register is empty. */
function firstServer(servers: string): string | null {
  try {
    return new ServerList(servers).current().origin;
  } catch (error) {
    if (FloeError.is(error) && error.code === 'peer_unreachable') return null;
    throw error;
  }
}
