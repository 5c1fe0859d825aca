import { describe, expect, it } from 'vitest';
import { formatReference, parseReference } from '../../src/images/reference.ts';

const DIGEST = `sha256:${'ab'.repeat(32)}`;

describe('parseReference', () => {
  it.each([
    ['python', 'docker.io/library/python:latest'],
    ['python:3.12', 'docker.io/library/python:3.12'],
    [
      'swebench/sweb.eval.x86_64.django_1776_django-11099',
      'docker.io/swebench/sweb.eval.x86_64.django_1776_django-11099:latest',
    ],
    ['ghcr.io/team/tool:v1', 'ghcr.io/team/tool:v1'],
    ['localhost/tool', 'localhost/tool:latest'],
    ['localhost:5000/tool', 'localhost:5000/tool:latest'],
    ['127.0.0.1:5000/a/b:c', '127.0.0.1:5000/a/b:c'],
    [`python@${DIGEST}`, `docker.io/library/python@${DIGEST}`],
    [`python:3.12@${DIGEST}`, `docker.io/library/python@${DIGEST}`],
  ])('reads %s as %s', (text, whole) => {
    expect(formatReference(parseReference(text))).toBe(whole);
    expect(formatReference(parseReference(whole))).toBe(whole);
  });

  it.each([
    [''],
    ['Python'],
    ['python:'],
    ['python:a b'],
    ['../etc/passwd'],
    ['--help'],
    ['a//b'],
    ['host:port/x'],
    ['python@sha256:12'],
    [`python@${DIGEST}@${DIGEST}`],
    ['x'.repeat(600)],
    ['docker://python'],
  ])('refuses %j', (text) => {
    expect(() => parseReference(text, 'runtime.image')).toThrow(
      expect.objectContaining({ code: 'schema_violation', message: expect.stringContaining('runtime.image: ') }),
    );
  });
});
