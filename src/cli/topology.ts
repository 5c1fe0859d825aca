import type { Command } from 'commander';
import { FloeError } from '../core/errors.ts';
import { quoteArgument } from '../deployment/shell-arguments.ts';
import {
  gatewayArguments,
  serverArguments,
  serverUrls,
  type Topology,
  topologySchema,
} from '../deployment/topology.ts';
import { withClient } from './connection.ts';
import { countOption } from './options.ts';
import { json, line, note } from './print.ts';
import { readYamlFile } from './yaml-file.ts';

/** `floe topology …`: which processes there are, on machines that are known. */
export function registerTopology(program: Command): void {
  const topology = program
    .command('topology')
    .description('one file that says which servers, nodes and engines there are');
  topology
    .command('check <file>')
    .description('check a topology, and print the commands that it stands for')
    .option('--json', 'machine-readable output')
    .action(async (file: string, options: { json?: boolean }) => {
      const checked = await readYamlFile(file, topologySchema);
      const commands = commandsOf(checked);
      if (options.json) json({ servers: serverUrls(checked), commands });
      else for (const words of commands) line(words.map(quoteArgument).join(' '));
    });
  topology
    .command('apply <file>')
    .description('register the engines of a topology at its servers')
    .option('--wait <seconds>', 'for the nodes to carry it out', '15')
    .option('--json', 'machine-readable output')
    .action(async (file: string, options: { wait: string; json?: boolean }) =>
      apply(await readYamlFile(file, topologySchema), Number(options.wait), options.json === true),
    );
}

function commandsOf(topology: Topology): string[][] {
  return [
    ...topology.server.replicas.map((_, index) => ['floe', 'server', ...serverArguments(topology, index + 1)]),
    ...topology.nodes.map((node) => ['floe', 'gateway', ...gatewayArguments(topology, node.id)]),
  ];
}

async function apply(topology: Topology, waitSeconds: number, asJson: boolean): Promise<void> {
  const place = {
    url: serverUrls(topology),
    ...(topology.token_file === null ? {} : { tokenFile: topology.token_file }),
    ...(topology.tls === null ? {} : { ca: topology.tls.ca }),
  };
  await withClient(place, async (client) => {
    for (const engine of topology.engines) {
      const change = await client.addEngine(engine, { waitSeconds, replace: true });
      if (asJson) json(change);
      else
        line(`${engine.base_url}: revision ${change.revision}, carried out by ${change.done.join(', ') || 'no node'}`);
      for (const { node_id, message } of change.problems) note(`problem at ${node_id}: ${message}`);
      if (change.problems.length > 0) process.exitCode = 1;
    }
  });
}

/**
 * Arguments of the process with those that a topology stands for: `floe server --topology f [--replica n]` and
 * `floe gateway --topology f --node-id id`. What else is given comes behind them and so takes precedence.
 */
export async function withTopology(argv: readonly string[]): Promise<string[]> {
  const [runtime = '', script = '', command = '', ...rest] = argv;
  const { value: file, others } = taken(rest, '--topology');
  if (file === null) return [...argv];
  if (command === 'server') {
    const replica = taken(others, '--replica');
    const topology = await readYamlFile(file, topologySchema);
    const number = replica.value === null ? 1 : countOption('--replica', replica.value);
    return [runtime, script, command, ...serverArguments(topology, number), ...replica.others];
  }
  if (command !== 'gateway')
    throw new FloeError('bad_request', '--topology is for floe server and floe gateway; others take --url');
  const node = taken(others, '--node-id');
  const topology = await readYamlFile(file, topologySchema);
  const only = topology.nodes.length === 1 ? topology.nodes[0]?.id : undefined;
  const id = node.value ?? only;
  if (id === undefined) throw new FloeError('bad_request', '--topology: say which node with --node-id');
  return [runtime, script, command, ...gatewayArguments(topology, id), ...node.others];
}

/** The value of an option, and the arguments without it. */
function taken(args: readonly string[], name: string): { value: string | null; others: string[] } {
  const index = args.findIndex((arg) => arg === name || arg.startsWith(`${name}=`));
  const found = args[index];
  if (found === undefined) return { value: null, others: [...args] };
  const joined = found.startsWith(`${name}=`);
  const value = joined ? found.slice(name.length + 1) : args[index + 1];
  if (value === undefined || value === '') throw new FloeError('bad_request', `${name}: a value is missing`);
  return { value, others: [...args.slice(0, index), ...args.slice(index + (joined ? 1 : 2))] };
}
