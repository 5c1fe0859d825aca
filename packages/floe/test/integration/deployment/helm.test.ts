import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { parse, parseAllDocuments, stringify } from 'yaml';
import { describeIf, toolMissing } from '../../../../../test/skip.ts';
import { repositoryRoot } from '../../../../../tools/repository.ts';
import { findTool } from '../../../../../verify/services/tools.ts';
import { configFileSchema } from '../../../src/commands/config-file.ts';

const DEPLOY = join(repositoryRoot(), 'deploy');
const CHART = join(DEPLOY, 'helm', 'floe');
const helm = findTool('helm');
const validator = findTool('kubernetes-validate');
const hadolint = findTool('hadolint');
const dir = mkdtempSync(join(tmpdir(), 'floe-helm-'));
afterAll(() => rmSync(dir, { recursive: true }));

// biome-ignore lint/suspicious/noExplicitAny: manifests have the shape that the Kubernetes API defines.
type Manifest = any;
type Rendered = { readonly text: string; readonly stderr: string; readonly manifests: readonly Manifest[] };

function render(values: object, ...files: string[]): Rendered {
  return renderChart(CHART, values, files);
}

/** Returns the notes that Helm prints after an installation, which `helm template` does not render. */
function notes(values: object, example: string): string {
  const copy = join(dir, 'chart');
  cpSync(CHART, copy, { recursive: true });
  cpSync(join(CHART, 'templates', 'NOTES.txt'), join(copy, 'notes.txt'));
  writeFileSync(
    join(copy, 'templates', 'notes.yaml'),
    'kind: Notes\ntext: {{ tpl (.Files.Get "notes.txt") . | toJson }}\n',
  );
  return renderChart(copy, values, [example]).manifests.find(({ kind }) => kind === 'Notes').text;
}

function renderChart(chart: string, values: object, files: readonly string[]): Rendered {
  const file = join(dir, 'values.yaml');
  writeFileSync(file, stringify(values));
  const given = [...files.map((name) => join(CHART, 'examples', name)), file].flatMap((path) => ['--values', path]);
  const args = ['template', 'demo', chart, '--kube-version', '1.34.0', ...given];
  const { stdout, stderr } = spawnSync(helm ?? '', args, { encoding: 'utf8' });
  const manifests = parseAllDocuments(stdout).map((document) => document.toJS());
  return { text: stdout, stderr, manifests: manifests.filter((manifest) => manifest !== null) };
}

function of(rendered: Rendered, kind: string, name: string): Manifest {
  const found = rendered.manifests.find((each) => each.kind === kind && each.metadata.name === name);
  if (found === undefined) throw new Error(`no ${kind} ${name}`);
  return found;
}

/** Returns the violations of Kubernetes' schemas in the manifests `text`. Custom kinds are not checked. */
function complaints(text: string, version: string): string {
  const file = join(dir, 'manifests.yaml');
  writeFileSync(file, text);
  const args = ['--strict', '--quiet', '--no-warn', '-k', version, file];
  const { stdout, stderr } = spawnSync(validator ?? '', args, { encoding: 'utf8' });
  return stdout + stderr;
}

const trial = { database: { trial: { enabled: true } } };

describeIf(toolMissing('helm'), 'the Helm chart', () => {
  describeIf(toolMissing('kubernetes-validate'), 'validated with example values', () => {
    it.each([
      ['trial.yaml', {}],
      ['production.yaml', {}],
      [
        'trial.yaml',
        { server: { replicas: 3 }, blobs: { accessModes: ['ReadWriteMany'] }, networkPolicy: { enabled: false } },
      ],
      ['trial.yaml', { config: { server: { sweep_seconds: 2 }, node: { stall_seconds: null } } }],
      ['trial.yaml', { engines: [{ url: 'http://e:1', model: '{{ .Values }} "$(id)" \n- x' }] }],
    ])('renders to valid manifests with %s and %j', (example, values) => {
      const { text, stderr } = render(values, example);
      expect(stderr).toBe('');
      for (const version of ['1.30', '1.34']) expect(complaints(text, version)).toBe('');
    });

    it('is rejected with a field that Kubernetes does not know', () => {
      const { text } = render({}, 'trial.yaml');
      expect(complaints(text.replace('livenessProbe:', 'livelinessProbe:'), '1.34')).toContain('livelinessProbe');
    });
  });

  it.each([
    ['no database', {}, 'database: name a Secret'],
    ['two databases', { database: { existingSecret: 'x', trial: { enabled: true } } }, 'two databases'],
    ['replicas on a volume for one', { ...trial, server: { replicas: 2 } }, 'ReadWriteMany'],
    ['settings of no part', { ...trial, config: { nodes: {} } }, "additional properties 'nodes' not allowed"],
    ['an unknown key', { ...trial, server: { replica: 2 } }, "additional properties 'replica' not allowed"],
    ['two roles of one name', { ...trial, nodes: [{ name: 'a' }, { name: 'a' }] }, 'two roles are called a'],
    ['a role called server', { ...trial, nodes: [{ name: 'server' }] }, '/nodes/0/name'],
  ])('refuses %s', (_, values, message) => {
    const { text, stderr } = render(values);
    expect(text).toBe('');
    expect(stderr).toContain(message);
  });

  it('passes secrets as files and names each node after its pod', () => {
    const rendered = render({}, 'production.yaml');
    const [server] = of(rendered, 'Deployment', 'demo-floe-server').spec.template.spec.containers;
    expect(server.args).toEqual(
      expect.arrayContaining(['--token-file', '--database-file', '--tls-key', '--callback-secret-file']),
    );
    const node = of(rendered, 'StatefulSet', 'demo-floe-agents').spec.template.spec;
    const args = node.containers[0].args;
    expect(args.slice(args.indexOf('--node-id')).slice(0, 2)).toEqual(['--node-id', '$(POD_NAME)']);
    expect(args).toContain('https://demo-floe-server:8080');
    // A node's pod gets the certificate of the authority (ca.crt) but not the server's private key.
    const tls = node.volumes.find((volume: Manifest) => volume.name === 'tls');
    expect(tls.secret.items).toEqual([{ key: 'ca.crt', path: 'ca.crt' }]);
    // The token in a node's pod permits only the calls of a node.
    const token = node.volumes.find((volume: Manifest) => volume.name === 'token');
    expect(token.secret.items).toEqual([{ key: 'node-token', path: 'token' }]);
    const { data } = of(render({}, 'trial.yaml'), 'Secret', 'demo-floe-token');
    const text = (key: string): string => Buffer.from(data[key], 'base64').toString();
    expect(text('tokens')).toBe(`node ${text('node-token')}\n`);
    expect(text('node-token')).not.toBe(text('token'));
  });

  it('uses harnesses on a volume or in the image, and its notes list the roles without a volume', () => {
    const rendered = render({}, 'production.yaml');
    const harnessDir = (role: string): string => {
      const [node] = of(rendered, 'StatefulSet', `demo-floe-${role}`).spec.template.spec.containers;
      expect(node.securityContext.readOnlyRootFilesystem).toBe(true);
      return node.env.find(({ name }: Manifest) => name === 'FLOE_HARNESS_DIR')?.value;
    };
    const dockerfile = readFileSync(join(DEPLOY, 'Dockerfile'), 'utf8');
    const [, ofImage] = /FLOE_HARNESS_DIR=(\S+)/.exec(dockerfile) ?? [];
    expect(dockerfile).toContain(`mkdir ${ofImage} `);
    expect([harnessDir('agents'), harnessDir('gpu')]).toEqual(['/harnesses', ofImage]);
    expect(notes({}, 'production.yaml')).toContain('installed in the image: gpu.');
    expect(notes({ nodes: [{ name: 'a', harnessClaim: 'x' }] }, 'trial.yaml')).not.toContain('image');
  });

  it('writes settings without an option to a file, and restarts the pods whose settings have changed', () => {
    type Part = { annotation: string | undefined; file: string | null };
    const parts = (config: object): [Part, Part] => {
      const rendered = render({ config, server: { podAnnotations: { mine: 'x' } } }, 'production.yaml');
      const part = (kind: string, name: string): Part => {
        const { metadata, spec } = of(rendered, kind, name).spec.template;
        const { args, volumeMounts } = spec.containers[0];
        const at = args.indexOf('--config');
        const mount = volumeMounts.find((each: Manifest) => each.name === 'config');
        const volume = spec.volumes.find((each: Manifest) => each.name === 'config');
        const annotation = metadata.annotations?.['floe/config'];
        if (at < 0) {
          expect([mount, volume]).toEqual([undefined, undefined]);
          return { annotation, file: null };
        }
        expect(mount.readOnly).toBe(true);
        const { data } = of(rendered, 'ConfigMap', volume.configMap.name);
        return { annotation, file: data[args[at + 1].replace(`${mount.mountPath}/`, '')] };
      };
      return [part('Deployment', 'demo-floe-server'), part('StatefulSet', 'demo-floe-agents')];
    };
    const none = { annotation: undefined, file: null };
    expect(parts({})).toEqual([none, none]);
    const config = {
      server: { max_uncollected_bytes: 2 ** 36, trainer_weights: { a: 2 } },
      node: { stall_seconds: 60 },
    };
    const [server, node] = parts(config);
    for (const { file } of [server, node]) expect(configFileSchema.parse(parse(file ?? ''))).toMatchObject(config);
    const [changed, kept] = parts({ ...config, server: { queue_order: 'longest_first' } });
    expect(changed.annotation).toMatch(/^[0-9a-f]{64}$/);
    expect(changed.annotation).not.toBe(server.annotation);
    expect(kept.annotation).toBe(node.annotation);
    expect(parts({ server: config.server })).toEqual([
      expect.objectContaining({ annotation: server.annotation }),
      none,
    ]);
  });

  it('registers engines and replaces their earlier registration', () => {
    const engines = of(render({}, 'production.yaml'), 'Job', 'demo-floe-engines').spec.template.spec.initContainers;
    expect(engines.map(({ args }: Manifest) => args.slice(0, 4))).toEqual([
      ['engines', 'add', 'http://vllm-0.vllm:8000', '--replace'],
      ['engines', 'add', 'http://sglang-0.sglang:30000', '--replace'],
    ]);
  });

  it('requests user namespaces only where bubblewrap needs them', () => {
    const pod = (example: string): Manifest =>
      of(render({}, example), 'StatefulSet', 'demo-floe-agents').spec.template.spec;
    expect(pod('production.yaml')).toMatchObject({
      hostUsers: false,
      securityContext: { runAsNonRoot: true, seccompProfile: { type: 'Unconfined' } },
      containers: [{ securityContext: { procMount: 'Unmasked', allowPrivilegeEscalation: false } }],
    });
    expect(pod('trial.yaml')).toMatchObject({ securityContext: { seccompProfile: { type: 'RuntimeDefault' } } });
    expect(pod('trial.yaml')).not.toHaveProperty('hostUsers');
  });

  it('lets only the server and monitoring reach a node, and nothing reach its proxy', () => {
    const policy = of(render({}, 'production.yaml'), 'NetworkPolicy', 'demo-floe-nodes');
    expect(policy.spec.ingress).toEqual([
      {
        from: [
          { podSelector: { matchLabels: expect.objectContaining({ 'app.kubernetes.io/component': 'server' }) } },
          { namespaceSelector: { matchLabels: { 'kubernetes.io/metadata.name': 'monitoring' } } },
        ],
        ports: [{ port: 'control', protocol: 'TCP' }],
      },
    ]);
    const agents = of(render({}, 'production.yaml'), 'StatefulSet', 'demo-floe-agents').spec.template;
    expect(agents.metadata.labels).toMatchObject(policy.spec.podSelector.matchLabels);
    expect(agents.spec.containers[0].args).not.toContain('--proxy-host');
  });

  it('keeps replicas available while pods move, and monitors them', () => {
    const rendered = render({}, 'production.yaml');
    expect(of(rendered, 'PodDisruptionBudget', 'demo-floe-server').spec.minAvailable).toBe(1);
    const [server] = of(rendered, 'Deployment', 'demo-floe-server').spec.template.spec.containers;
    expect(server.readinessProbe.httpGet).toEqual({ path: '/ready', port: 'control', scheme: 'HTTPS' });
    expect(server.livenessProbe.httpGet.path).toBe('/health');
    const tokenFor = (part: string): string =>
      of(rendered, 'ServiceMonitor', `demo-floe-${part}`).spec.endpoints[0].authorization.credentials.key;
    expect([tokenFor('server'), tokenFor('node')]).toEqual(['token', 'node-token']);
    // The manifest sets no number of replicas, because the autoscaler sets it.
    expect(of(rendered, 'Deployment', 'demo-floe-server').spec).not.toHaveProperty('replicas');
  });
});

describeIf(toolMissing('hadolint'), 'the Dockerfile', () => {
  it('passes hadolint', () => {
    const { stdout, status } = spawnSync(hadolint ?? '', [join(DEPLOY, 'Dockerfile')], { encoding: 'utf8' });
    expect([stdout, status]).toEqual(['', 0]);
  });
});
