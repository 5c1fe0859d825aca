import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { repositoryRoot } from '../tools/repository.ts';

const ROOT = repositoryRoot();
const page = readFileSync(join(ROOT, 'AGENTS.md'), 'utf8');
const skill = readFileSync(join(ROOT, 'skills', 'floe', 'SKILL.md'), 'utf8');

describe('the page for coding agents', () => {
  it('names npm scripts, tests, folders and pages that exist', () => {
    const { scripts } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as { scripts: object };
    const named = [...page.matchAll(/`npm (?:run )?([a-z]+)/g)].map(([, name]) => name);
    expect(named.length).toBeGreaterThan(5);
    expect(named.filter((name) => !Object.hasOwn(scripts, name ?? ''))).toEqual([]);
    const paths = [...page.matchAll(/`((?:packages|test|tools|docs)\/[\w./-]*|CHANGELOG\.md)`|\]\(([\w./-]+)/g)];
    expect(paths.length).toBeGreaterThan(5);
    expect(paths.map(([, path, link]) => path ?? link ?? '').filter((path) => !existsSync(join(ROOT, path)))).toEqual(
      [],
    );
  });
});

describe('the skill', () => {
  it('has the front matter that coding agents read, with the name of its folder', () => {
    const [, front = ''] = /^---\n(.*?)\n---\n/s.exec(skill) ?? [];
    expect(front).toMatch(/^name: floe$/m);
    expect(/^description: (.*)$/m.exec(front)?.[1]?.length).toBeLessThan(1024);
  });

  it('names pages that exist', () => {
    const pages = [...skill.matchAll(/`((?:docs\/)?[a-zA-Z-]+\.md)`/g)].map(([, name = '']) =>
      name.replace('docs/', ''),
    );
    expect(pages.length).toBeGreaterThan(5);
    expect(pages.filter((name) => !existsSync(join(ROOT, 'docs', name)))).toEqual([]);
  });
});
