package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/cli/parcel"
	"github.com/cay-run/cay/internal/template/dockerfile"
)

type buildCmd struct {
	Dir      string            `arg:"" optional:"" default:"." help:"Directory that COPY takes files from [.]."`
	Name     string            `short:"t" required:"" help:"Template's name, or name:tag."`
	File     string            `short:"f" placeholder:"PATH" help:"Dockerfile [DIR/Dockerfile]."`
	BuildArg map[string]string `placeholder:"NAME=VALUE" help:"Value of an ARG."`
	Target   string            `help:"Stage to build [the last one]."`
	CPUs     int               `name:"cpus" help:"CPUs of its sandboxes."`
	Memory   int               `placeholder:"MB" help:"Memory of its sandboxes."`
	Secret   []string          `sep:"none" placeholder:"id=NAME,src=PATH" help:"What RUN --mount=type=secret sees and no layer keeps; env=VARIABLE in place of src for one of the environment."`
	Volume   []string          `sep:"none" placeholder:"VOLUME[/DIR]:PATH[:ro]" help:"Volume that RUN steps see at a path; nothing on it gets into the template."`
	Docker   bool              `help:"Give root of its sandboxes what Docker needs; as LABEL cay.docker=true."`
	NoCache  bool              `help:"Run every step, whatever is known."`
	Start    string            `placeholder:"COMMAND" help:"The command that runs in its sandboxes, in place of CMD and ENTRYPOINT."`
	Ready    string            `placeholder:"COMMAND" help:"A command that succeeds when that one is up, in place of HEALTHCHECK."`
	Username string            `help:"For a private registry of FROM."`
	Password string            `env:"REGISTRY_PASSWORD" help:"For a private registry; best given as REGISTRY_PASSWORD."`
	Verbose  bool              `short:"v" help:"Show every line of the log."`
}

func (buildCmd) Help() string {
	return "Builds a template of a Dockerfile, stage by stage, as docker build would. FROM names an image of a registry, " +
		"one of `cay image`, or e2bdev/base, e2bdev/code-interpreter and e2bdev/desktop for the templates that Cay brings."
}

func (c *buildCmd) Run(a *app) error {
	if c.File == "" {
		c.File = filepath.Join(c.Dir, "Dockerfile")
	}
	text, err := os.ReadFile(c.File)
	if err != nil {
		return cay.Wrap(cay.NotFound, err, "cannot read %s", c.File).
			WithHint("write one with: cay template init")
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	files, err := parcel.OpenContext(c.Dir, c.File)
	if err != nil {
		return err
	}
	secrets, err := readSecrets(c.Secret)
	if err != nil {
		return err
	}
	volumes, err := volumeMounts(c.Volume)
	if err != nil {
		return err
	}
	b := &dockerBuild{cmd: c, app: a, api: api, files: files, secrets: secrets, volumes: volumes, boxes: map[int]*client.Sandbox{}, begun: time.Now()}
	plan, err := dockerfile.Parse(text, dockerfile.Options{Args: c.BuildArg, Target: c.Target, OnBuild: b.onBuild})
	if err != nil {
		return err
	}
	for _, w := range plan.Warnings {
		fmt.Fprintf(a.err, "warning: %s\n", w)
	}
	defer b.close()
	return b.run(plan)
}

// dockerBuild carries a plan out, one build of the server for each stage.
type dockerBuild struct {
	cmd     *buildCmd
	app     *app
	api     *client.Client
	files   *parcel.Context
	secrets buildSecrets
	volumes []client.VolumeMount
	plan    dockerfile.Plan
	stages  []client.Build          // done
	boxes   map[int]*client.Sandbox // of stages, to copy from
	begun   time.Time
}

func (b *dockerBuild) registry() *client.Registry {
	if b.cmd.Username == "" && b.cmd.Password == "" {
		return nil
	}
	return &client.Registry{Type: "registry", Username: b.cmd.Username, Password: b.cmd.Password}
}

// onBuild asks for the triggers of an image. An image that the server cannot
// pull has no known triggers; the build says what is wrong with it.
func (b *dockerBuild) onBuild(image string) ([]string, error) {
	if strings.HasPrefix(image, "e2bdev/") {
		return nil, nil
	}
	img, err := b.api.PullImage(b.app.ctx, image, b.registry(), func(step string) { b.say("FROM", clean(step)) })
	if err != nil {
		return nil, b.app.ctx.Err()
	}
	return img.OnBuild, nil
}

func (b *dockerBuild) run(plan dockerfile.Plan) error {
	b.plan = plan
	for i := range plan.Stages {
		if err := b.stage(i); err != nil {
			return err
		}
	}
	done := b.stages[len(b.stages)-1]
	if b.app.json {
		return b.app.printJSON(done)
	}
	fmt.Fprintln(b.app.out, clean(done.TemplateID))
	fmt.Fprintf(b.app.err, "  built in %s; make a sandbox: cay sandbox create %s\n",
		time.Since(b.begun).Round(100*time.Millisecond), clean(b.cmd.Name))
	return nil
}

// stage builds one stage. Only the last one keeps its template.
func (b *dockerBuild) stage(i int) error {
	s := b.plan.Stages[i]
	last := i == len(b.plan.Stages)-1
	name := b.cmd.Name
	if !last {
		base, _, _ := strings.Cut(name, ":")
		name = fmt.Sprintf("%s-stage-%d", base, i)
	}
	build, err := b.api.RequestBuild(b.app.ctx, client.NewBuild{Name: name, CPUs: b.cmd.CPUs, MemoryMB: b.cmd.Memory})
	if err != nil {
		return err
	}
	b.stages = append(b.stages, build)
	start := client.BuildStart{FromImage: s.From.Image, Registry: b.registry(), Force: b.cmd.NoCache, Volumes: b.volumes, Docker: b.cmd.Docker || s.Docker}
	if s.From.Stage >= 0 {
		start.FromImage, start.Registry, start.FromTemplate = "", nil, b.stages[s.From.Stage].TemplateID
	}
	if last {
		start.StartCmd, start.ReadyCmd = or(b.cmd.Start, s.Start), or(b.cmd.Ready, s.Ready)
	}
	for _, step := range s.Steps {
		steps, err := b.step(build, step)
		if err != nil {
			return err
		}
		start.Steps = append(start.Steps, steps...)
	}
	start.Secrets = b.secrets.of(start.Steps)
	if err := b.api.StartBuild(b.app.ctx, build, start); err != nil {
		return err
	}
	return b.api.WaitBuild(b.app.ctx, build, func(l client.BuildLog) {
		if b.cmd.Verbose || l.Level != "debug" {
			b.say(s.Name, clean(l.Message))
		}
	})
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// say writes a line of progress: when, of what stage, what.
func (b *dockerBuild) say(stage, text string) {
	if b.app.json {
		return
	}
	prefix := ""
	if len(b.plan.Stages) > 1 || stage == "FROM" {
		prefix = clean(stage) + " "
	}
	fmt.Fprintf(b.app.err, "%6.1fs %s%s\n", time.Since(b.begun).Seconds(), prefix, text)
}

// step puts one step into the server's words.
func (b *dockerBuild) step(build client.Build, s dockerfile.Step) ([]client.BuildStep, error) {
	switch {
	case s.Run != nil:
		mounts, err := b.secrets.mounts(s)
		return []client.BuildStep{{Type: "RUN", Args: []string{s.Run.Command}, Secrets: mounts}}, err
	case s.Copy != nil:
		step, err := b.copy(build, s)
		return []client.BuildStep{step}, err
	case s.Env != nil:
		out := client.BuildStep{Type: "ENV"}
		for _, kv := range s.Env {
			out.Args = append(out.Args, kv.Name, kv.Value)
		}
		return []client.BuildStep{out}, nil
	case s.User != "":
		return []client.BuildStep{{Type: "USER", Args: []string{s.User}}}, nil
	}
	return []client.BuildStep{{Type: "WORKDIR", Args: []string{s.Workdir}}}, nil
}

// copy packs the files of a COPY or ADD in the form that they have below its
// destination, and sends them.
func (b *dockerBuild) copy(build client.Build, s dockerfile.Step) (client.BuildStep, error) {
	c := s.Copy
	p, err := parcel.New()
	if err != nil {
		return client.BuildStep{}, err
	}
	defer p.Remove()
	if c.Stage >= 0 {
		err = b.packStage(p, *c)
	} else {
		err = b.files.Pack(b.app.ctx, p, *c)
	}
	if err == nil {
		err = p.Seal()
	}
	if err != nil {
		if e, ok := err.(*cay.Error); ok {
			out := *e
			out.Msg = fmt.Sprintf("Dockerfile line %d: %s", s.Line, e.Msg)
			return client.BuildStep{}, &out
		}
		return client.BuildStep{}, err
	}
	owner := or(c.Owner, "root") // Docker's rule, for every USER
	args := []string{".", c.Dest, owner, c.Mode}
	if p.Single() != "" {
		args[0] = p.Single()
	}
	hash := p.Hash(args)
	if err := b.api.UploadFiles(b.app.ctx, build, hash, p.Size(), p.Open); err != nil {
		return client.BuildStep{}, err
	}
	return client.BuildStep{Type: "COPY", Args: args, FilesHash: hash}, nil
}

// box is a sandbox of a stage that is built.
func (b *dockerBuild) box(stage int) (*client.Sandbox, error) {
	if s := b.boxes[stage]; s != nil {
		return s, nil
	}
	s, err := b.api.Create(b.app.ctx, client.CreateOptions{Template: b.stages[stage].TemplateID, Timeout: time.Hour, NoInternet: true})
	if err != nil {
		return nil, err
	}
	b.boxes[stage] = s
	return s, nil
}

// close ends what the build needed only for its time.
func (b *dockerBuild) close() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.app.ctx), time.Minute)
	defer cancel()
	for _, s := range b.boxes {
		_ = b.api.Kill(ctx, s.ID) // it ends by itself in an hour
	}
	for i, build := range b.stages {
		if i < len(b.plan.Stages)-1 {
			_ = b.api.RemoveTemplate(ctx, build.TemplateID) // the next build takes it over
		}
	}
}
