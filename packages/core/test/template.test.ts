import { describe, expect, it } from 'vitest';
import { jsonSize, MAX_TASK_BYTES, MAX_TASK_VALUES } from '../src/json-size.ts';
import { fillTemplate } from '../src/template.ts';

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

  describe('with long fields', () => {
    /** Returns a template whose task has exactly `bytes` bytes when it is filled from {@link long}. */
    const templateOf = (bytes: number) => {
      const template = { instruction: '{{row.text}} and {{row.list}}: ', list: ['{{row.list}}', '{{row.text}}'] };
      const { bytes: filled } = jsonSize(fillTemplate(template, 'row', long));
      return { ...template, instruction: `${template.instruction}${'x'.repeat(bytes - filled)}` };
    };
    const long = { text: '\n"é😀'.repeat(1_000), list: ['\\', '"', 1, null, { a: '\u0001' }] };

    it('fills a template up to the size of the largest task', () => {
      const filled = JSON.stringify(fillTemplate(templateOf(MAX_TASK_BYTES), 'row', long));
      expect(Buffer.byteLength(filled)).toBe(MAX_TASK_BYTES);
    });

    it('refuses one byte more, and names the size, the limit and the largest text of the template', () => {
      expect(() => fillTemplate(templateOf(MAX_TASK_BYTES + 1), 'row', long)).toThrow(
        expect.objectContaining({
          code: 'body_too_large',
          message: expect.stringMatching(/^instruction: .* 8388609 bytes .* at most 8388608 bytes/),
          details: expect.objectContaining({ path: 'instruction', bytes: 8_388_609, limit_bytes: 8_388_608 }),
        }),
      );
    });

    it('refuses a placeholder that is repeated until the task has gigabytes, before it fills it in', () => {
      const field = { text: 'x'.repeat(2 ** 20) };
      const template = { agent: { env: { A: '{{row.text}}'.repeat(4_000) } } };
      expect(() => fillTemplate(template, 'row', field)).toThrow(
        expect.objectContaining({ details: expect.objectContaining({ path: 'agent.env.A', bytes: 4_194_304_026 }) }),
      );
    });

    it('refuses a task with more values than a submission may have', () => {
      const field = { list: Array.from({ length: 1_000 }, () => 0) };
      const template = Array.from({ length: 1 + MAX_TASK_VALUES / 1_000 }, () => '{{row.list}}');
      expect(() => fillTemplate(template, 'row', field)).toThrow(expect.objectContaining({ code: 'body_too_large' }));
    });
  });
});
