import { VirtualClock } from '@floe-rl/core';
import { describe, expect, it } from 'vitest';
import { EngineVersions } from '../../src/engines/versions.ts';

type Answer = { readonly status: number; readonly body: Buffer };

const answerOf = (version: string | null): Answer => ({
  status: 200,
  body: Buffer.from(JSON.stringify({ weight_version: version })),
});

/** A server whose answers to version requests the test gives one by one, or that answers each request immediately with `version`. */
class Server {
  version: string | null = 'v0';
  requests = 0;
  isHeld = false;
  readonly held: ((answer: Answer) => void)[] = [];
  readonly clock = new VirtualClock();
  readonly versions = new EngineVersions(this.clock, async () => {
    this.requests++;
    return this.isHeld ? new Promise<Answer>((resolve) => this.held.push(resolve)) : answerOf(this.version);
  });
}

const span = (version: string | null, start: number, end: number) => ({ version, start, end });

describe('the current version', () => {
  it('is requested at most ten times a second', async () => {
    const server = new Server();
    expect(await server.versions.current()).toBe('v0');
    server.version = 'v1';
    server.clock.advance(99);
    expect(await server.versions.current()).toBe('v0');
    server.clock.advance(1);
    expect(await server.versions.current()).toBe('v1');
    expect(server.requests).toBe(2);
  });

  it('is requested immediately when the weights may have changed', async () => {
    const server = new Server();
    expect(await server.versions.current()).toBe('v0');
    server.version = 'v1';
    server.versions.mayHaveChanged();
    expect(await server.versions.current()).toBe('v1');
    expect(server.requests).toBe(2);
  });

  it('is not taken from a request that was sent before the weights may have changed', async () => {
    const server = new Server();
    server.isHeld = true;
    const before = server.versions.current();
    server.versions.mayHaveChanged();
    const after = [server.versions.current(), server.versions.current()];
    server.held[0]?.(answerOf('v0'));
    expect(await before).toBe('v0');
    server.held[1]?.(answerOf('v1'));
    expect(await Promise.all(after)).toEqual(['v1', 'v1']);
    expect(await server.versions.current()).toBe('v1');
    expect(server.requests).toBe(2);
  });

  it('is the last known version when the server does not answer', async () => {
    const server = new Server();
    await server.versions.current();
    server.isHeld = true;
    server.versions.mayHaveChanged();
    const current = server.versions.current();
    server.held[0]?.({ status: 503, body: Buffer.from('') });
    expect(await current).toBe('v0');
  });
});

describe('a reply with version spans', () => {
  const spans = [span('v0', 0, 2), span('v1', 2, 5)];

  it('has these spans when its first token has the version from before the call', async () => {
    const { versions } = new Server();
    expect(await versions.beginReply('v0')({ count: 5, spans })).toEqual(spans);
  });

  it('has no version when the weights changed between the call and its first token', async () => {
    const { versions } = new Server();
    expect(await versions.beginReply('v9')({ count: 5, spans })).toEqual([span(null, 0, 5)]);
    expect(await versions.beginReply(null)({ count: 5, spans })).toEqual([span(null, 0, 5)]);
  });

  it('keeps the spans whose version is unknown beside the others', async () => {
    const { versions } = new Server();
    const lastUnknown = [span('v0', 0, 2), span(null, 2, 5)];
    expect(await versions.beginReply('v0')({ count: 5, spans: lastUnknown })).toEqual(lastUnknown);
  });

  it('makes the next call request the version when it shows that the weights changed', async () => {
    const server = new Server();
    expect(await server.versions.current()).toBe('v0');
    server.version = 'v1';
    await server.versions.beginReply('v0')({ count: 5, spans });
    expect(await server.versions.current()).toBe('v1');
  });

  it('gives the version of a server that cannot be asked for it', async () => {
    const versions = new EngineVersions(new VirtualClock(), null);
    versions.assign('assigned');
    await versions.beginReply('assigned')({ count: 5, spans });
    expect(await versions.current()).toBe('v1');
  });

  it('counts as one without spans when the server has given its weights no version', async () => {
    const versions = new EngineVersions(new VirtualClock(), null);
    versions.assign('assigned');
    const unnamed = [span(null, 0, 5)];
    expect(await versions.beginReply('assigned')({ count: 5, spans: unnamed })).toEqual([span('assigned', 0, 5)]);
  });
});

describe('a reply without version spans', () => {
  it('has the version that the server reported before and after it', async () => {
    const server = new Server();
    const reply = server.versions.beginReply('v0');
    expect(await reply({ count: 5, spans: null })).toEqual([span('v0', 0, 5)]);
    server.version = 'v1';
    expect(await reply({ count: 5, spans: null })).toEqual([span(null, 0, 5)]);
    expect(await reply({ count: 5, spans: null, end: 'v0' })).toEqual([span('v0', 0, 5)]);
    expect(await reply({ count: 5, spans: null, end: 'v1' })).toEqual([span(null, 0, 5)]);
  });

  it('has no version when the server does not answer after it', async () => {
    const server = new Server();
    await server.versions.current();
    server.isHeld = true;
    const spans = server.versions.beginReply('v0')({ count: 5, spans: null });
    server.held[0]?.({ status: 503, body: Buffer.from('') });
    expect(await spans).toEqual([span(null, 0, 5)]);
  });

  it('has a version when the weights may have changed and the server reports that they did not', async () => {
    const server = new Server();
    await server.versions.current();
    const reply = server.versions.beginReply('v0');
    server.versions.mayHaveChanged();
    expect(await reply({ count: 5, spans: null })).toEqual([span('v0', 0, 5)]);
  });
});

describe('a reply of a server that reports no version', () => {
  const begun = (): { versions: EngineVersions; end: () => Promise<unknown> } => {
    const versions = new EngineVersions(new VirtualClock(), null);
    versions.assign('v1');
    const reply = versions.beginReply('v1');
    return { versions, end: () => reply({ count: 5, spans: null }) };
  };

  it('has the assigned version', async () => {
    expect(await begun().end()).toEqual([span('v1', 0, 5)]);
  });

  it('has no version when another one is assigned during it, even if the old one is assigned again', async () => {
    const { versions, end } = begun();
    versions.assign('v2');
    expect(await end()).toEqual([span(null, 0, 5)]);
    versions.assign('v1');
    expect(await end()).toEqual([span(null, 0, 5)]);
  });

  it('has no version when the weights may have changed during it', async () => {
    const { versions, end } = begun();
    versions.mayHaveChanged();
    expect(await end()).toEqual([span(null, 0, 5)]);
  });
});
