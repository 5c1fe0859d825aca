import { connect, createServer, type Socket } from 'node:net';

/**
 * Listens on a port of the sandbox's loopback interface, and forwards each connection to the Unix socket of the session's proxy. Rejects when
 * the port cannot be opened. Runs in the sandbox.
 */
export function listenForProxy(port: number, socketPath: string): Promise<void> {
  const server = createServer({ allowHalfOpen: true }, (client) => forward(client, socketPath));
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, '127.0.0.1', resolve);
  });
}

function forward(client: Socket, socketPath: string): void {
  const upstream = connect({ path: socketPath, allowHalfOpen: true });
  const drop = (): void => {
    client.destroy();
    upstream.destroy();
  };
  // When either socket closes, the other one is closed too. The proxy thus detects a disconnected client and aborts its engine call.
  client.on('error', drop).on('close', drop);
  upstream.on('error', drop).on('close', drop);
  client.setNoDelay(true);
  client.pipe(upstream);
  upstream.pipe(client);
}
