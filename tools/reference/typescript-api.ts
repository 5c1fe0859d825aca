import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseSync } from 'oxc-parser';
import { repositoryRoot } from '../repository.ts';

type Entry = {
  readonly name: string;
  readonly code: string;
  readonly about: string;
  readonly members: readonly Entry[];
};

/** The files of `floe/client`, in the order of the page. */
const FILES = ['floe-client', 'connection', 'define-task', 'session-filter'];

/** Renders docs/typescript-reference.md from the declarations of the exports of `floe/client`. */
export function typescriptPage(): string {
  const folder = join(repositoryRoot(), 'packages', 'client', 'dist');
  const index = readFileSync(join(folder, 'index.d.ts'), 'utf8');
  const entries = FILES.flatMap((name) => entriesOf(readFileSync(join(folder, `${name}.d.ts`), 'utf8')));
  const exported = entries.filter(({ name }) => new RegExp(`\\b${name}\\b`).test(index));
  return [
    '# TypeScript reference',
    '',
    'Generated from the declarations of `floe/client` by `npm run generate`. The package `@floe-rl/client` exports the same. Types of tasks and results are',
    'in `floe/schema`; [openapi.json](openapi.json) has their fields. The options of a call also take `signal`, an `AbortSignal`.',
    '',
    ...exported.flatMap((entry) => [...entryLines(entry), ...entry.members.flatMap(memberLines)]),
  ].join('\n');
}

function memberLines({ code, about }: Entry): string[] {
  const signature = code
    .replaceAll(/\s+/g, ' ')
    .replace(/;$/, '')
    .replace(/signal\?: AbortSignal\)/, 'signal?)');
  return [`- \`${signature}\`${about === '' ? '' : `: ${about.replaceAll(/\s+/g, ' ')}`}`, ''];
}

function entryLines({ name, code, about }: Entry): string[] {
  return [`## \`${name}\``, '', ...(about === '' ? [] : [about, '']), '```text', code, '```', ''];
}

/** Returns the exported declarations of a file with their comments. The members of a class are entries of their own. */
function entriesOf(text: string): Entry[] {
  const { program, comments } = parseSync('declarations.d.ts', text);
  const aboutOf = (start: number): string => {
    const comment = comments.findLast(({ end }) => end <= start);
    const isBefore = comment !== undefined && text.slice(comment.end, start).trim() === '';
    return isBefore && comment.value.startsWith('*') ? proseOf(comment.value) : '';
  };
  return program.body.flatMap((node): Entry[] => {
    if (node.type !== 'ExportNamedDeclaration' || node.declaration === null) return [];
    const { declaration } = node;
    const name =
      'id' in declaration && declaration.id !== null && 'name' in declaration.id ? declaration.id.name : null;
    if (name === null) return [];
    const about = aboutOf(node.start);
    const code = shortened(text.slice(node.start, node.end).replace(/^export (?:declare )?/, ''));
    if (declaration.type !== 'ClassDeclaration') return [{ name, code, about, members: [] }];
    const members = declaration.body.body.flatMap((member): Entry[] => {
      if (!('key' in member) || member.key.type !== 'Identifier') return [];
      if ('accessibility' in member && member.accessibility === 'private') return [];
      const signature = shortened(text.slice(member.start, member.end).replaceAll(/^ {4}/gm, ''));
      return [{ name: member.key.name, code: signature, about: aboutOf(member.start), members: [] }];
    });
    return [{ name, code: code.slice(0, code.indexOf('{')).trim(), about, members }];
  });
}

/**
 * Removes parts that callers need not read: `readonly`, `undefined` next to a `?`, and the abort signal of options, which the page describes
 * once.
 */
function shortened(code: string): string {
  return code
    .replaceAll(/^ +(?:readonly )?signal\?: AbortSignal;\n/gm, '')
    .replaceAll('readonly ', '')
    .replaceAll(' | undefined;', ';');
}

/** Returns the text of a doc comment: without stars, and with `{@link Name}` as code. */
function proseOf(comment: string): string {
  return comment
    .split('\n')
    .map((line) => line.replace(/^\s*\*+ ?/, ''))
    .join('\n')
    .replaceAll(/\{@link ([^}]+)\}/g, '`$1`')
    .trim();
}
