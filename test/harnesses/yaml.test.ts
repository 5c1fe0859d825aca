import { execFileSync } from 'node:child_process';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { harnessDir } from '../../src/cli/home.ts';
import { pythonPath } from '../../src/harnesses/install/catalog.ts';
import { harnessStatus } from '../../src/harnesses/install/install.ts';
import { toYaml } from '../../src/harnesses/yaml.ts';
import { harnessMissing, itIf } from '../skip.ts';

const { path } = await harnessStatus('mini_swe_agent', harnessDir());

describe('a YAML document', () => {
  test('is JSON in plain characters', () => {
    expect(toYaml({ task: 'a: "b"\n\t#c', n: [1, null, true] })).toBe(
      '{"task":"a: \\"b\\"\\n\\t#c","n":[1,null,true]}',
    );
    expect(toYaml('é\u0085\u2028\u007f😀')).toBe('"\\u00e9\\u0085\\u2028\\u007f\\U0001f600"');
  });

  test('holds no half of a character', () => {
    expect(toYaml('a\ud83d')).toBe('"a\\ufffd"');
    expect(toYaml('\ude00\\ud83d')).toBe('"\\ufffd\\\\ud83d"');
  });

  itIf(
    harnessMissing('mini_swe_agent', path !== null),
    'is read back as it was by the parser that mini-SWE-agent has',
    () => {
      if (path === null) throw new Error('mini_swe_agent is not installed');
      const odd = fc.constantFrom(...'\0\t\n\r"\\:#{}[]%@&*!|>~\x7f\x85\x9f\xa0\u2028\u2029\ufeff\ufffe\uffff😀');
      const unit = fc.oneof(odd, fc.string({ unit: 'binary', minLength: 1, maxLength: 1 }));
      const values = fc.sample(fc.dictionary(fc.string({ unit, maxLength: 8 }), fc.string({ unit })), 300);
      const script = 'import json, sys, yaml; print(json.dumps([yaml.safe_load(line) for line in sys.stdin]))';
      const input = values.map((value) => toYaml(value)).join('\n');
      const read = execFileSync(pythonPath(path), ['-c', script], { input, maxBuffer: 1 << 26 });
      expect(JSON.parse(read.toString())).toEqual(values);
    },
  );
});
