import { type ParseArgsConfig, parseArgs } from 'node:util';
import { FloeError } from '@floe-rl/core';
import { type JsonOption, takeJsonOption } from '../../tools/json-option.ts';

type OptionTable = NonNullable<ParseArgsConfig['options']>;
type Values<Table extends OptionTable> = ReturnType<typeof parseArgs<{ options: Table }>>['values'];

/** The arguments of a program: its options, its other arguments, and where `--json` or `--json FILE` writes. */
export type Options<Table extends OptionTable> = {
  readonly options: Values<Table>;
  readonly names: readonly string[];
  readonly json: JsonOption;
};

/**
 * Reads the arguments of this program. Every program has the option `--json [FILE]`. `takesNames` permits arguments that are not options. Throws
 * `bad_request`, which the reader of the program's name prints as one line, for an option that is not in the table.
 */
export function readOptions<const Table extends OptionTable>(
  table: Table,
  { takesNames = false }: { readonly takesNames?: boolean } = {},
): Options<Table> {
  const { args, json } = takeJsonOption(process.argv.slice(2));
  try {
    const parsed = parseArgs({ args: [...args], options: table, allowPositionals: takesNames });
    return { options: parsed.values as Values<Table>, names: parsed.positionals, json };
  } catch (thrown) {
    if (!(thrown instanceof TypeError)) throw thrown;
    throw new FloeError('bad_request', `${thrown.message.split('.')[0]}; there are ${optionsOf(table)}`);
  }
}

/**
 * Throws `bad_request` when one of `names` is unknown; the message lists the known names. `what` is the kind of the named things, such as
 * `trainer`.
 */
export function refuseUnknown(what: string, names: readonly string[], known: readonly string[]): void {
  const unknown = names.find((name) => !known.includes(name));
  if (unknown === undefined) return;
  throw new FloeError('bad_request', `there is no ${what} ${JSON.stringify(unknown)}; there are ${known.join(', ')}`);
}

function optionsOf(table: OptionTable): string {
  return [...Object.keys(table), 'json'].map((name) => `--${name}`).join(', ');
}
