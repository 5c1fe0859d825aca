import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../../tools/repository.ts';
import { readSources } from '../../../tools/site/sources.ts';
import { checkDenials, type Denial } from '../../../verify/docs/denials.ts';
import { KNOWN_DENIALS } from '../../../verify/docs/known-denials.ts';

let root: string;
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'floe-denials-'));
  mkdirSync(join(root, 'src'));
  writeFileSync(join(root, 'src', 'routes.ts'), "['POST', '/x']\n");
});
afterEach(() => rmSync(root, { recursive: true }));

function problemsOf(markdown: string, known: readonly Denial[] = []): string[] {
  return checkDenials(root, [{ path: 'docs/a.md', markdown }], known).map(({ problem }) => problem);
}

describe('a sentence that denies something', () => {
  it.each([
    ['# A\n\n## Not there yet\n\n- A dashboard.\n', '"A dashboard."'],
    ['# A\n\nFiles are read. MCP servers are not\nsupported.\n', '"MCP servers are not supported."'],
    [
      '# A\n\n| `backend` | `local`; `docker` and `apptainer`, others, are refused |\n',
      '"`docker` and `apptainer`, others',
    ],
    ['# A\n\nReplies are kept: there is no `GET /x`.\n', '"there is no `GET /x`."'],
    ['# A\n\nImages are `unsupported`.\n', '"Images are `unsupported`."'],
  ])('is reported without a proof: %j', (markdown, quoted) => {
    const [problem, ...others] = problemsOf(markdown);
    expect(problem).toContain(quoted);
    expect(problem).toContain('add it to verify/docs/known-denials.ts');
    expect(others).toEqual([]);
  });

  it.each([
    '# A\n\nA late result is refused by its epoch, and waits when there is no engine.\n',
    '# A\n\n| there is no solution | 0 |\n',
    '# A\n\n```text\nImages are not supported.\n```\n<!-- Tools are not supported. -->\n',
    '# A\n\nGenerated from `a.ts`.\n\nTools are not supported.\n',
  ])('is not seen where a request, an example or generated text is described: %j', (markdown) => {
    expect(problemsOf(markdown)).toEqual([]);
  });

  it('is reported when its proof does not hold, or when it left the page', () => {
    const page = 'docs/a.md';
    const markdown = '# A\n\n## Not there yet\n\n- A dashboard: soon.\n- Reading.\n';
    const dashboard = { page, says: 'A dashboard', proofs: [{ missing: 'dashboard' }] };
    const reading = {
      page,
      says: 'Reading',
      proofs: [
        { in: 'src', lacks: 'GET' },
        { in: 'src/routes.ts', has: 'POST' },
      ],
    };
    expect(problemsOf(markdown, [dashboard, reading])).toEqual([]);
    mkdirSync(join(root, 'dashboard'));
    writeFileSync(join(root, 'src', 'routes.ts'), "['GET', '/x']\n");
    const gone = { page, says: 'Writing', proofs: [] };
    expect(problemsOf(markdown, [dashboard, reading, gone])).toEqual([
      '"A dashboard" is not true any more: there is dashboard; correct the page',
      '"Reading" is not true any more: src is missing or has "GET"; correct the page',
      '"Reading" is not true any more: src/routes.ts has no "POST"; correct the page',
      'no sentence has "Writing": remove it from verify/docs/known-denials.ts',
    ]);
  });
});

it('the pages deny nothing that is not proven', () => {
  const repository = repositoryRoot();
  expect(checkDenials(repository, readSources(repository).pages, KNOWN_DENIALS)).toEqual([]);
});
