import { FloeError } from '@floe-rl/core';

/** Delay of a node's event loop in ms since the previous reading, as the node itself measures it every 10 ms. */
export type Lag = { readonly p99Ms: number; readonly maxMs: number };

/** Reads the delay of a node's event loop from the metrics of its control listener. Reading it starts a new measurement. */
export async function readLag(controlUrl: string): Promise<Lag> {
  const text = await (await fetch(`${controlUrl}/metrics`)).text();
  const value = (name: string): number => {
    const found = new RegExp(`^${name} (\\S+)$`, 'm').exec(text)?.[1];
    if (found === undefined) throw new FloeError('internal', `the node has no metric ${name}`);
    return Number(found) * 1000;
  };
  return {
    p99Ms: value('nodejs_eventloop_lag_p99_seconds'),
    maxMs: value('nodejs_eventloop_lag_max_seconds'),
  };
}
