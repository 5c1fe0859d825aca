import { Command } from 'commander';
import { expect, it } from 'vitest';
import { checkCommandLines, startsPrograms } from '../../../verify/docs/command-lines.ts';
import type { Block } from '../../../verify/pages/blocks.ts';

const program = new Command('floe');
program.command('up').option('--sim', '').option('--port <port>', '');
const engines = program.command('engines').option('--json', '');
engines.command('add').argument('<url>').option('--kind <kind>', '');
const names = { verify: new Set(['faults']), bench: new Set<string>() };

function block(text: string): Block {
  return { page: 'a.md', line: 9, language: 'sh', text, notRun: null, before: '', quoted: null, file: null };
}

function problems(text: string): string[] {
  return checkCommandLines(block(text), program, names).map(({ where, problem }) => `${where} ${problem}`);
}

it('the check accepts commands and options that exist, wherever they are in a line', () => {
  const lines = [
    'FLOE_URL=x floe up --sim --port=8080 # floe nothing --here',
    "floe engines add http://a \\\n  --kind sglang | grep '--none'",
    'cd a && npx floe engines --json > out; npm run verify -- faults --any',
    "cat > file <<'EOF'\nfloe nothing\nEOF",
    "echo 'floe nothing --at-all'",
  ];
  expect(problems(lines.join('\n'))).toEqual([]);
});

it('the check reports commands, options and programs that do not exist, with their line', () => {
  const lines = ['floe up --simulated', 'floe down', 'true && floe engines add --sort x', 'npm run verify -- fautls'];
  expect(problems(lines.join('\n'))).toEqual([
    'a.md:10 floe up has no option --simulated',
    'a.md:11 floe has no command down',
    'a.md:12 floe engines add has no option --sort',
    'a.md:13 npm run verify has no program fautls',
  ]);
});

it('startsPrograms recognises blocks that only start verification programs and benches', () => {
  expect(startsPrograms(block('# first\nnpm run verify -- faults   # all\nnpm run bench -- x\n'))).toBe(true);
  expect(startsPrograms(block('npm run verify -- faults\nfloe up\n'))).toBe(false);
});
