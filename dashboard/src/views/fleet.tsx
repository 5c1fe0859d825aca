import type { EnginesStatus, NodeInfo, RolloutStatus } from '@floe-rl/core/schema';
import type { JSX } from 'preact';
import { getJson } from '../api.ts';
import { Action } from '../components/action.tsx';
import { Badge, Loaded } from '../components/parts.tsx';
import { Table } from '../components/table.tsx';
import { compact, timeText } from '../format.ts';
import { useQuery } from '../query.ts';

const REFRESH_MS = 2_000;

/** The nodes with their stage pools, the engines, and the trainers. */
export function Fleet(): JSX.Element {
  const status = useQuery('fleet', (aborted) => getJson<RolloutStatus>('rollout/status', aborted), {
    nextMs: () => REFRESH_MS,
  });
  const engines = useQuery('engines', (aborted) => getJson<EnginesStatus>('engines', aborted), {
    nextMs: () => REFRESH_MS,
  });
  return (
    <>
      <h1>Nodes and engines</h1>
      <h2>Nodes</h2>
      <Loaded of={status}>{(data) => <Nodes nodes={data.nodes} />}</Loaded>
      <h2>Engines</h2>
      <Loaded of={engines}>{(data) => <Engines status={data} />}</Loaded>
      <h2>Trainers</h2>
      <Loaded of={status}>{(data) => <Trainers trainers={data.trainers} />}</Loaded>
    </>
  );
}

function Nodes({ nodes }: { nodes: readonly NodeInfo[] }): JSX.Element {
  if (nodes.length === 0) {
    return (
      <p class="quiet">
        No node is registered. Start one with <code>floe gateway</code>.
      </p>
    );
  }
  return (
    <Table heads={['Node', 'State', 'INIT', 'READY', 'RUN', 'POSTRUN', 'Last heartbeat']}>
      {nodes.map((node) => (
        <tr key={node.node_id}>
          <td>{node.node_id}</td>
          <td>
            <NodeState node={node} />
          </td>
          <td>
            <Used used={node.metrics.init_inflight} of={node.max_init_workers} />
          </td>
          <td>
            <Used used={node.metrics.ready_depth} of={node.ready_size} />
          </td>
          <td>
            <Used used={node.metrics.run_inflight} of={node.max_run_workers} />
          </td>
          <td>
            <Used used={node.metrics.postrun_inflight} of={node.max_postrun_workers} />
            {node.metrics.postrun_queue_depth > 0 && ` and ${node.metrics.postrun_queue_depth} wait`}
          </td>
          <td>{timeText(node.last_heartbeat)}</td>
        </tr>
      ))}
    </Table>
  );
}

function NodeState({ node }: { node: NodeInfo }): JSX.Element {
  if (!node.healthy) return <Badge tone="bad">silent</Badge>;
  if (node.draining) return <Badge tone="warn">draining</Badge>;
  if (node.refuses !== null) return <Badge tone="warn">accepts none: {node.refuses}</Badge>;
  return <Badge tone="good">works</Badge>;
}

/** A number of places in use, as a bar with its numbers. */
function Used({ used, of }: { used: number; of: number }): JSX.Element {
  return (
    <span class="used">
      <meter value={used} max={Math.max(1, of)} aria-label={`${used} of ${of}`} /> {used}/{of}
    </span>
  );
}

function Engines({ status: { engines, paused, policy_version: version } }: { status: EnginesStatus }): JSX.Element {
  return (
    <>
      <p>
        {paused !== null && <Badge tone="warn">paused ({paused})</Badge>} Policy version: {version ?? 'not set'}{' '}
        {paused === null ? (
          <Action label="Pause the engines" method="POST" path="engines/pause" body={{}} key="pause" />
        ) : (
          <Action label="Resume the engines" method="POST" path="engines/resume" key="resume" />
        )}
      </p>
      {engines.length === 0 ? (
        <p class="quiet">
          No engine is registered. Add one with <code>floe engines add URL</code>.
        </p>
      ) : (
        <Table heads={['Engine', 'Kind', 'Pool', 'Model', 'Node', 'State', 'Version', 'Calls']}>
          {engines.flatMap(({ engine_id: id, kind, pool, nodes }) =>
            nodes.map(({ node_id: node, state, problem, info }) => (
              <tr key={`${id} ${node}`}>
                <td>{id}</td>
                <td>{kind}</td>
                <td>{pool}</td>
                <td>{info?.model ?? '–'}</td>
                <td>{node}</td>
                <td>
                  {state === 'ready' && info?.healthy !== false && <Badge tone="good">ready</Badge>}
                  {state === 'ready' && info?.healthy === false && <Badge tone="bad">unhealthy</Badge>}
                  {state === 'pending' && <Badge tone="plain">pending</Badge>}
                  {state === 'failed' && <Badge tone="bad">{problem ?? 'failed'}</Badge>}
                </td>
                <td>{info?.policy_version ?? '–'}</td>
                <td>{info === null ? '–' : compact(info.inflight)}</td>
              </tr>
            )),
          )}
        </Table>
      )}
    </>
  );
}

function Trainers({ trainers }: { trainers: RolloutStatus['trainers'] }): JSX.Element {
  if (trainers.length === 0) return <p class="quiet">No trainer has work.</p>;
  return (
    <Table heads={['Trainer', 'Queued', 'Live', 'Uncollected results', 'Held back']}>
      {trainers.map((trainer) => (
        <tr key={trainer.trainer}>
          <td>{trainer.trainer}</td>
          <td>{compact(trainer.queued)}</td>
          <td>{compact(trainer.live)}</td>
          <td>{compact(trainer.uncollected_results)}</td>
          <td>{trainer.held_back ?? '–'}</td>
        </tr>
      ))}
    </Table>
  );
}
