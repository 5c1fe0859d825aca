// Files that agents leave in their sandbox where floe reads or writes files.
import type { RandomSource } from '@floe-rl/core';

/** A file, or something else, that an agent leaves at a path. */
export type Hazard = {
  /** What is at the path, as a noun phrase. */
  readonly name: string;
  /**
   * Shell script that creates the hazard at `$P`. `$CANARY` is the path of a secret file on the host. `$OUTSIDE` is the path of a directory on
   * the host that nothing may change.
   */
  readonly script: string;
  /** Returns the name of the file; absent for a random name. */
  readonly fileName?: (random: RandomSource) => string;
  /** Whether the path is a regular file with {@link CONTENT}, which must be transferred as it is. */
  readonly isPlain?: boolean;
  /** Script that runs as long as the operation does, while floe reads or writes the path. */
  readonly meanwhile?: string;
};

export const CONTENT = 'the content of a plain file';
const PLAIN = `printf '%s' '${CONTENT}' > "$P"`;

function plain(name: string, fileName: (random: RandomSource) => string): Hazard {
  return { name, script: PLAIN, fileName, isPlain: true };
}

/** Returns a hazard with a background process that keeps replacing the path by the hazard and by a plain file, in turn. */
function swapped(name: string, command: string): Hazard {
  const meanwhile = `end=$(( $(date +%s) + 20 )); while [ ! -e "$P.end" ] && [ "$(date +%s)" -lt $end ]; do ${command}; mv -fT "$P.new" "$P" 2>/dev/null; ${PLAIN.replace('"$P"', '"$P.new"')}; mv -fT "$P.new" "$P" 2>/dev/null; done; true`;
  return { name, script: PLAIN, meanwhile };
}

export const HAZARDS: readonly Hazard[] = [
  plain('a plain file', randomName),
  plain('a name with line breaks', (random) => `a\nb${randomName(random)}\r`),
  plain('a name that begins with a dash', (random) => `--checkpoint-action=exec=sh ${randomName(random)}`),
  plain('a name of 255 bytes', (random) => randomName(random).padEnd(255, 'n')),
  plain(
    'a name of other alphabets and control characters',
    (random) => `\u00e9\u4e16\u202e\x1b[2J${randomName(random)}`,
  ),
  plain('a name with quotes and commands', (random) => `$(touch x)\`id\`"';|&${randomName(random)}`),
  { name: 'a link to a file of the host', script: 'ln -s "$CANARY" "$P"' },
  { name: 'a relative link to a file of the host', script: 'ln -s "../../../../../../../../../../../..$CANARY" "$P"' },
  {
    name: 'a chain of links to a file of the host',
    script: 'ln -s "$P.2" "$P"; ln -s "$P.3" "$P.2"; ln -s "$CANARY" "$P.3"',
  },
  { name: 'a link to itself', script: 'ln -s "$P" "$P"' },
  { name: 'a link to a directory of the host', script: 'ln -s "$OUTSIDE" "$P"' },
  { name: 'a link to a new file in a directory of the host', script: 'ln -s "$OUTSIDE/new" "$P"' },
  { name: 'a link to the root of the first process', script: 'ln -s "/proc/1/root$CANARY" "$P"' },
  { name: 'a link to the environment of the process that reads it', script: 'ln -s /proc/self/environ "$P"' },
  { name: 'a link to an endless device', script: 'ln -s /dev/zero "$P"' },
  { name: 'a pipe', script: 'mkfifo "$P"' },
  { name: 'a link to a pipe', script: 'mkfifo "$P.pipe"; ln -s "$P.pipe" "$P"' },
  { name: 'a device', script: 'mknod "$P" c 1 5 2>/dev/null || mkfifo "$P"' },
  { name: 'a directory', script: 'mkdir "$P"; echo x > "$P/x"' },
  { name: 'a directory with links to the host', script: 'mkdir "$P"; ln -s "$CANARY" "$P/x"; ln -s "$OUTSIDE" "$P/y"' },
  {
    name: 'a hard link to a link to the host',
    script: 'ln -s "$CANARY" "$P.link"; ln -P "$P.link" "$P" 2>/dev/null || ln -s "$P.link" "$P"',
  },
  { name: 'a sparse file of 4 GB', script: 'truncate -s 4G "$P"' },
  { name: 'a file that is larger than the limit', script: 'head -c 3000000 /dev/zero > "$P"' },
  { name: 'a file without permissions', script: `${PLAIN}; chmod 000 "$P"` },
  {
    name: 'a directory with 3,000 entries',
    script: 'mkdir "$P"; i=0; while [ $i -lt 3000 ]; do : > "$P/$i"; i=$((i + 1)); done',
  },
  {
    name: 'a directory of 300 levels',
    script:
      'd="$P"; i=0; while [ $i -lt 300 ]; do d="$d/dddd"; i=$((i + 1)); done; mkdir -p "$d"; cd "$P"; i=0; while [ $i -lt 300 ]; do cd dddd || break; i=$((i + 1)); done; ln -s "$CANARY" end',
  },
  swapped('a file that becomes a link to the host while it is used', 'ln -s "$CANARY" "$P.new"'),
  swapped('a file that becomes a pipe while it is used', 'mkfifo "$P.new"'),
  swapped('a file that becomes a link to a directory of the host while it is used', 'ln -s "$OUTSIDE" "$P.new"'),
];

export function randomName(random: RandomSource): string {
  return `f${Math.floor(random() * 2 ** 40).toString(36)}`;
}
