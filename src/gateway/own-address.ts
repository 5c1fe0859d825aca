import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { hostname } from 'node:os';

/**
 * The address of this machine that packets to a server come from; nothing is sent to find out. The host name where that cannot be
 * told, as while the server's name does not resolve.
 */
export async function ownAddress(serverUrl: string): Promise<string> {
  const { hostname: server, port, protocol } = new URL(serverUrl);
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
