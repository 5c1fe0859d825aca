import { Command, type Option } from 'commander';
import { COMMANDS } from '#floe/commands/commands';

/** Returns the program `floe` with all its commands, to describe it and to check command lines. */
export async function floeProgram(): Promise<Command> {
  const program = new Command('floe');
  for (const load of Object.values(COMMANDS)) (await load())(program);
  return program;
}

/** Renders docs/cli.md, which lists every command with its arguments and options. */
export async function commandLinePage(): Promise<string> {
  const program = await floeProgram();
  const lines = program.commands.flatMap((command) => commandLines(command, `floe ${command.name()}`));
  return [
    '# Command line',
    '',
    'Generated from the commands by `npm run generate`; `floe COMMAND --help` prints the same. Exit codes are in',
    '[when the first start fails](guides/first-start.md), settings that have no option in [configuration](configuration.md).',
    '',
    ...lines,
  ].join('\n');
}

function commandLines(command: Command, name: string): string[] {
  const words = command.registeredArguments.map((argument) => {
    const text = argument.variadic ? `${argument.name()}...` : argument.name();
    return argument.required ? `<${text}>` : `[${text}]`;
  });
  const usage = [name, ...words].join(' ');
  const rows = command.options.filter(({ hidden }) => !hidden).map(optionRow);
  const table = ['| Option | Meaning | Default |', '|---|---|---|', ...rows, ''];
  return [
    `## ${name}`,
    '',
    ...(words.length === 0 ? [] : [`\`${usage}\``, '']),
    sentence(command.description()),
    '',
    ...(rows.length === 0 ? [] : table),
    ...command.commands.flatMap((one) => commandLines(one, `${name} ${one.name()}`)),
  ];
}

function optionRow({ flags, description, defaultValue: value, argChoices: choices }: Option): string {
  const hasDefault = value !== undefined && value !== false && !(Array.isArray(value) && value.length === 0);
  const allowed = choices === undefined ? '' : ` (${choices.join(', ')})`;
  const cells = [`\`${flags}\``, `${description}${allowed}`, hasDefault ? `\`${String(value)}\`` : ''];
  return `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`;
}

function sentence(text: string): string {
  return text === '' ? '' : `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}
