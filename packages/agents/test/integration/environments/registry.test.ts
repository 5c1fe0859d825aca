import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { describe, expect, it } from 'vitest';
import { repositoryRoot } from '../../../../../tools/repository.ts';
import { ENVIRONMENTS, findEnvironment, parseEnvironmentConfig } from '../../../src/environments/registry.ts';

const NAMES = 'sokoban, frozen_lake, bandit, guess_number, wordle, blackjack, tic_tac_toe, shop';

describe('findEnvironment', () => {
  it('finds each environment by its name', () => {
    expect(NAMES.split(', ').map((name) => findEnvironment(name).name)).toEqual(ENVIRONMENTS.map(({ name }) => name));
  });

  it('lists the names when a name is unknown', () => {
    expect(() => findEnvironment('chess')).toThrow(
      expect.objectContaining({
        code: 'unknown_environment',
        status: 422,
        message: `no environment "chess"; there are ${NAMES}`,
      }),
    );
  });
});

describe('parseEnvironmentConfig', () => {
  it.each<[string, object, string]>([
    ['sokoban', { dim_room: [6] }, 'dim_room'],
    ['sokoban', { dim_room: [5, 5], num_boxes: 4 }, 'num_boxes'],
    ['frozen_lake', { size: 1 }, 'size'],
    ['bandit', { arms: 'many' }, 'arms'],
    ['guess_number', { min: 5, max: 5 }, 'max'],
    ['wordle', { words: ['horse', 'cat'] }, 'words'],
    ['blackjack', { action_format: 'json' }, 'action_format'],
    ['tic_tac_toe', { opponent: 'self', side: 'o' }, 'side'],
    ['shop', { kinds: ['theft'] }, 'kinds.0'],
  ])('rejects, for %s, the config %j and names the field', (name, config, field) => {
    expect(() => parseEnvironmentConfig(findEnvironment(name), config)).toThrow(
      expect.objectContaining({
        code: 'schema_violation',
        message: expect.stringContaining(`environment ${name}: environment.config.${field}: `),
      }),
    );
  });

  it('names an unknown field', () => {
    expect(() => parseEnvironmentConfig(findEnvironment('bandit'), { arm: 3 })).toThrow('Unrecognized key: "arm"');
  });
});

describe('the registry', () => {
  it('does not load the database driver before a shop is opened', () => {
    const registry = pathToFileURL(
      join(repositoryRoot(), 'packages', 'agents', 'dist', 'environments', 'registry.js'),
    ).href;
    const program = `
      import { createRequire } from 'node:module';
      const { findEnvironment } = await import(${JSON.stringify(registry)});
      const loaded = () => Object.keys(createRequire(import.meta.url).cache).some((path) => path.includes('/libsql/'));
      const before = loaded();
      const shop = findEnvironment('shop');
      const environment = shop.create(shop.config.parse({}), { signal: new AbortController().signal });
      await environment.reset(0);
      await environment.close();
      console.log(before, loaded());`;
    const { stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '--eval', program], {
      encoding: 'utf8',
    });
    expect(stderr + stdout).toBe('false true\n');
  });
});
