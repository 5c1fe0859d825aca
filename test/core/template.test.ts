import { describe, expect, it } from 'vitest';
import { fillTemplate } from '../../src/core/template.ts';

describe('fillTemplate', () => {
  const row = { problem: '1 + 1', nothing: null, extra: { level: 4, tags: ['sum', 'easy'] } };

  it('keeps the type of a field that a placeholder alone names, and writes others as JSON into the text', () => {
    const template = { level: '{{row.extra.level}}', all: ['{{ row.problem }} at {{row.extra}}', 7] };
    const all = ['1 + 1 at {"level":4,"tags":["sum","easy"]}', 7];
    expect(fillTemplate(template, 'row', row)).toEqual({ level: 4, all });
  });

  it('fills in the whole value, an element of a list and null', () => {
    expect(fillTemplate(['{{row}}', '{{row.extra.tags.1}}', '{{row.nothing}}'], 'row', row)).toEqual([
      row,
      'easy',
      null,
    ]);
  });

  it('keeps text between braces that does not name the variable', () => {
    const text = '{{instance.problem}} {{rows}} {{rows.x y}} {row.problem} {{row in rows}}';
    expect(fillTemplate(text, 'row', row)).toBe(text);
  });

  it.each([
    ['a field that the value does not have', '.answer'],
    ['a property that every object inherits', '.extra.constructor'],
    ['a part of a text', '.problem.length'],
    ['a field of null', '.nothing.more'],
    ['an element after the end of a list', '.extra.tags.2'],
  ])('refuses %s, and names the placeholder and its place', (_, path) => {
    const issues = [
      {
        path: `row${path}`,
        message: `is missing, and the template's field env.0.A needs it for {{row${path}}}`,
      },
    ];
    expect(() => fillTemplate({ env: [{ A: `is {{ row${path} }}` }] }, 'row', row)).toThrow(
      expect.objectContaining({
        code: 'schema_violation',
        message: `row${path}: ${issues[0]?.message}`,
        details: { issues },
      }),
    );
  });

  it('fills in fields with letters of every language', () => {
    expect(fillTemplate('{{row.größe}} {{row.問題}}', 'row', { größe: 2, 問題: 'x' })).toBe('2 x');
  });

  it.each(['{{row.}}', '{{row.a b}}', '{{ row.problem | upper }}', '{{row[0]}}', '{{row.problem.}}'])(
    'refuses %s instead of keeping it as text',
    (text) => {
      expect(() => fillTemplate({ env: [`see ${text}`] }, 'row', row)).toThrow(
        expect.objectContaining({
          code: 'schema_violation',
          message: expect.stringContaining(`env.0: has ${text}, which is not a placeholder`),
        }),
      );
    },
  );

  it('copies the key __proto__ as any other', () => {
    const filled = fillTemplate(JSON.parse('{"__proto__": {"a": "{{row.problem}}"}}'), 'row', row);
    expect(JSON.stringify(filled)).toBe('{"__proto__":{"a":"1 + 1"}}');
    expect(fillTemplate('{{row.__proto__}}', 'row', JSON.parse('{"__proto__": 1}'))).toBe(1);
  });

  it('lists every placeholder that it could not fill', () => {
    expect(() => fillTemplate({ a: '{{row.x}}', b: '{{row.problem}} {{row.y}}' }, 'row', row)).toThrow(
      expect.objectContaining({
        message: expect.stringContaining('(and 1 more)'),
        details: { issues: [expect.objectContaining({ path: 'row.x' }), expect.objectContaining({ path: 'row.y' })] },
      }),
    );
  });
});
