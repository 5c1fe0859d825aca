import { FloeError } from '../../core/errors.ts';

/** Longest part of a foreign name that an error repeats: such a name may be as long as a body. */
const MAX_QUOTED_CHARS = 128;

export function quoted(name: string): string {
  return name.length <= MAX_QUOTED_CHARS ? name : `${name.slice(0, MAX_QUOTED_CHARS)}…`;
}

/** Longer than any model's name; one that an alias of `*` lets through is kept with its call. */
const MAX_NAME_CHARS = 512;

/** Throws `not_found`, naming the models there are. An alias of `*` allows any name of up to {@link MAX_NAME_CHARS}. */
export function refuseModel(asked: string, name: string, aliases: readonly string[]): void {
  if (asked === name || aliases.includes(asked) || (aliases.includes('*') && asked.length <= MAX_NAME_CHARS)) return;
  const there = [name, ...aliases].join(', ');
  throw new FloeError('not_found', `no such model: ${quoted(asked)}; there is ${there}`);
}
