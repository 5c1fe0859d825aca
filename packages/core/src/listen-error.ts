import { FloeError } from './errors.ts';

/** The options of a command that choose the address and the port of a listener. Both have the same name when one option sets both. */
export type ListenOptions = { readonly host: string; readonly port: string };

/**
 * Returns the error `setup_failed` for a listener that cannot be opened. `name` names the listener in the message. The message names the
 * option to change.
 */
export function listenError(
  name: string,
  { host, port }: { readonly host: string; readonly port: number },
  options: ListenOptions,
  cause: unknown,
): FloeError {
  const reason = `${reasonOf(cause as NodeJS.ErrnoException, port)} with ${optionOf(cause, options)}`;
  return new FloeError('setup_failed', `${name} cannot listen on ${host}:${port}: ${reason}`, { host, port }, cause);
}

function reasonOf({ code, message }: NodeJS.ErrnoException, port: number): string {
  switch (code) {
    case 'EADDRINUSE':
      return 'another program uses this port; end it, or choose another port';
    case 'EACCES':
      return `this user may not use port ${port}; choose a port above 1023`;
    case 'EADDRNOTAVAIL':
      return 'this machine does not have this address; choose an address of this machine';
    case 'ENOTFOUND':
    case 'EAI_AGAIN':
      return 'the name of the host has no address; choose an address of this machine';
    default:
      return `${message}; choose another address`;
  }
}

function optionOf(cause: unknown, { host, port }: ListenOptions): string {
  const { code } = cause as NodeJS.ErrnoException;
  return code === 'EADDRINUSE' || code === 'EACCES' ? port : host;
}
