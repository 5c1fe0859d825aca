import { lowerPriority } from '../processes/priority.ts';
import { ChildRunner } from './child-runner.ts';
import { closeInheritedDescriptors } from './inherited-descriptors.ts';
import type { HelperReply, HelperRequest } from './spawner.ts';

/*
 * The program of the spawn helper, which is the parent of every child process of a gateway. When the gateway ends, the helper kills these
 * processes and ends too.
 */

const runner = new ChildRunner(reply);

// Sandboxes must not depend on the umask under which the node was started. With umask 077, the users of sandboxes could not read their
// files.
process.umask(0o022);
lowerPriority();
closeInheritedDescriptors();
process.on('message', (message) => receive(message as HelperRequest));
process.on('disconnect', () => endAll());
// Ignores Ctrl-C in a terminal. The gateway handles it, and the helper ends when the gateway ends.
process.on('SIGINT', () => {});
process.on('SIGTERM', () => endAll());
reply({ type: 'ready' });

function receive(message: HelperRequest): void {
  switch (message.type) {
    case 'spawn':
      runner.start(message.id, message.request);
      break;
    case 'kill':
      runner.kill(message.id);
      break;
    case 'close':
      endAll();
  }
}

function endAll(): void {
  runner.killAll();
  process.exit(0);
}

function reply(message: HelperReply): void {
  // A message cannot be written when the gateway has ended. Without the callback, the error of the write would end the helper at once. With
  // it, the helper lives until the event `disconnect`, at which it kills its processes.
  if (process.connected) process.send?.(message, undefined, undefined, () => {});
}
