/**
 * The command, run after the directory in which the program keeps its logs has become a link to one that is collected, for
 * programs that cannot be told another place without taking their configuration along. The link's parent must be there.
 * Without the link the program runs all the same: it makes the directory itself.
 */
export function withLogsIn(logDir: string, link: string, command: readonly string[]): readonly string[] {
  const script = 'mkdir -p "$1" && ln -s "$1" "$2"; shift 2; exec "$@"';
  return ['/bin/sh', '-c', script, 'floe-logs', logDir, link, ...command];
}
