import { Command, type Option } from 'commander';
import { COMMANDS } from '#floe/commands/commands';

/** Minimum number of commands with an option of the same name, meaning and default. The option is then described once for all of them. */
const SHARED_FROM = 2;

/** Options of every command that calls a server, which the page names together. */
const CONNECTION = ['`--url`', '`--token-file`', '`--ca`', '`--json`'];

/** Returns the program `floe` with all its commands, to describe it and to check command lines. */
export async function floeProgram(): Promise<Command> {
  const program = new Command('floe');
  for (const load of Object.values(COMMANDS)) (await load())(program);
  return program;
}

/** Renders docs/cli.md, which lists every command with its arguments and options. Options that several commands share are described once. */
export async function commandLinePage(): Promise<string> {
  const program = await floeProgram();
  const shared = sharedRows(program);
  const lines = program.commands.flatMap((command) => commandLines(command, `floe ${command.name()}`, shared));
  return [
    '# Command line',
    '',
    'Generated from the commands by `npm run generate`; `floe COMMAND --help` prints the same. Exit codes are in',
    '[when the first start fails](guides/first-start.md), settings that have no option in [configuration](configuration.md).',
    '"Shared" lists the options of a command that [shared options](#shared-options) describes; *connection* stands for',
    `${CONNECTION.join(', ')}.`,
    '',
    ...lines,
    '## Shared options',
    '',
    ...shared,
    '',
  ].join('\n');
}

/**
 * Returns the rows of the options that several commands share, in the order of their first command. When options with one name have several
 * meanings, only the most common meaning is shared, so that a name describes one option.
 */
function sharedRows(program: Command): ReadonlySet<string> {
  const counts = new Map<string, { readonly name: string; count: number }>();
  const count = (command: Command): void => {
    for (const option of command.options.filter(({ hidden }) => !hidden)) {
      const row = optionRow(option);
      const entry = counts.get(row) ?? { name: nameOf(option), count: 0 };
      counts.set(row, { ...entry, count: entry.count + 1 });
    }
    for (const one of command.commands) count(one);
  };
  count(program);
  const used = new Map<string, string>();
  for (const [row, entry] of [...counts].sort(([, one], [, other]) => other.count - one.count)) {
    if (entry.count >= SHARED_FROM && !used.has(entry.name)) used.set(entry.name, row);
  }
  const shared = new Set(used.values());
  return new Set([...counts.keys()].filter((row) => shared.has(row)));
}

function commandLines(command: Command, name: string, shared: ReadonlySet<string>): string[] {
  const words = command.registeredArguments.map((argument) => {
    const text = argument.variadic ? `${argument.name()}...` : argument.name();
    return argument.required ? `<${text}>` : `[${text}]`;
  });
  const usage = [name, ...words].join(' ');
  const options = command.options.filter(({ hidden }) => !hidden);
  const own = options.map(optionRow).filter((row) => !shared.has(row));
  const names = options.filter((option) => shared.has(optionRow(option))).map((option) => `\`${nameOf(option)}\``);
  const connects = CONNECTION.every((one) => names.includes(one));
  const others = connects ? [...names.filter((one) => !CONNECTION.includes(one)), '*connection*'] : names;
  return [
    `## \`${usage}\``,
    '',
    sentence(command.description()),
    '',
    ...(own.length === 0 ? [] : [...own, '']),
    ...(others.length === 0 ? [] : [`Shared: ${others.join(', ')}.`, '']),
    ...command.commands.flatMap((one) => commandLines(one, `${name} ${one.name()}`, shared)),
  ];
}

function nameOf({ long, flags }: Option): string {
  return long ?? flags;
}

function optionRow({ flags, description, defaultValue: value, argChoices: choices }: Option): string {
  const hasDefault = typeof value === 'string' || typeof value === 'number' || value === true;
  const allowed = choices === undefined ? '' : ` (${choices.join(', ')})`;
  const byDefault = hasDefault ? ` (default: \`${String(value)}\`)` : '';
  return `- \`${flags}\`: ${description}${allowed}${byDefault}`;
}

function sentence(text: string): string {
  return text === '' ? '' : `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}
