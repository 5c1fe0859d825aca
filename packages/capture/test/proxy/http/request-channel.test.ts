import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { gzipSync } from 'node:zlib';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { type ProxyRequestMessage, REQUEST_CHANNEL } from '../../../src/proxy/http/request-channel.ts';
import { chatBody, Rig } from '../rig.ts';

let rig: Rig;
let heard: ProxyRequestMessage[];
const listener = (message: unknown): void => void heard.push(message as ProxyRequestMessage);
beforeEach(async () => {
  rig = await Rig.start();
  heard = [];
  subscribe(REQUEST_CHANNEL, listener);
});
afterEach(async () => {
  unsubscribe(REQUEST_CHANNEL, listener);
  await rig.stop();
});

describe('the channel of requests', () => {
  it('publishes every request of a session without its key and with the unpacked body', async () => {
    const key = rig.key();
    await rig.open({ key });
    const body = JSON.stringify(chatBody());
    await rig.send({
      path: `/s/${key}/v1/chat/completions?beta=true&key=${key}`,
      raw: gzipSync(body),
      headers: {
        authorization: `Bearer ${key}`,
        'x-api-key': key,
        'x-goog-api-key': key,
        'proxy-authorization': 'Basic dTpw',
        cookie: 'a=b',
        referer: `http://x/s/${key}/`,
        'x-session-id': 'agent',
        'content-encoding': 'gzip',
      },
    }).reply;
    await rig.send({ method: 'GET', path: `/s/${key}/v1/models` }).reply;
    await rig.send({ path: `/s/${key}/api/telemetry/${key}`, body: { a: 1 } }).reply;
    expect(heard.map(({ method, path, dialect, body }) => [method, path, dialect, body.toString()])).toEqual([
      ['POST', '/v1/chat/completions?beta=true', 'openai_chat', body],
      ['GET', '/v1/models', 'openai_chat', ''],
      ['POST', '/api/telemetry/<key>', 'openai_chat', ''],
    ]);
    expect(heard[0]).toMatchObject({
      sessionId: 'ses_1',
      headers: { 'x-session-id': 'agent', 'content-encoding': 'gzip' },
    });
    expect(JSON.stringify(heard.map(({ path, headers }) => ({ path, headers })))).not.toContain(key);
    for (const secret of ['cookie', 'proxy-authorization']) expect(heard[0]?.headers).not.toHaveProperty(secret);
  });

  it('does not publish requests without a valid key', async () => {
    await rig.send({ path: '/s/unknown/v1/chat/completions', body: chatBody() }).reply;
    await rig.send({ path: '/v1/chat/completions', body: chatBody() }).reply;
    expect(heard).toEqual([]);
  });
});
