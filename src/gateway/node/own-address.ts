import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { hostname } from 'node:os';
import { ServerList } from '../../client/server-list.ts';
import { FloeError } from '../../core/errors.ts';

/**
 * The address of this machine from which packets to a server, the first of several, are sent. Determined without sending a packet. The
 * host name when the address cannot be determined, for example because the server's name does not resolve.
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

/** URL of the first server; `null` while a folder of servers is empty. */
function firstServer(servers: string): string | null {
  try {
    return new ServerList(servers).current().origin;
  } catch (error) {
    if (FloeError.is(error) && error.code === 'peer_unreachable') return null;
    throw error;
  }
}
