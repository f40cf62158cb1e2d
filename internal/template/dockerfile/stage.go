package dockerfile

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// stage is a Stage while it is read.
type stage struct {
	Stage
	r     *reader
	index int // in the Dockerfile

	args  map[string]string // declared with a value, in this stage
	env   map[string]string // as far as it is known
	open  bool              // an image may set what env does not have
	shell []string

	entrypoint, cmd []string // nil for none
	user, dir       string   // as Docker has them
	ownUser, ownDir bool     // the Dockerfile set them
	onBuild         []string
}

// begin sets the user and the directory of commands, which Docker takes for
// granted: root and the root directory, unless the stage's base has others.
func (s *stage) begin(user, dir string) {
	s.user, s.dir = user, dir
	s.Steps = append(s.Steps, Step{User: user}, Step{Workdir: dir})
}

// inherit takes over what a stage before it left, and returns its triggers.
func (s *stage) inherit(from *stage) []string {
	s.env, s.open = maps.Clone(from.env), from.open
	s.shell, s.entrypoint, s.cmd = from.shell, from.entrypoint, from.cmd
	s.Ready, s.Docker, s.ownUser, s.ownDir = from.Ready, from.Docker, from.ownUser, from.ownDir
	s.begin(from.user, from.dir)
	return from.onBuild
}

// finish adds what a sandbox expects of a template and Docker does not: the
// user, at home, unless the Dockerfile has other wishes.
func (s *stage) finish() {
	s.Start = startLine(s.entrypoint, s.cmd)
	if !s.ownUser {
		s.Steps = append(s.Steps, Step{User: "user"})
	}
	if !s.ownDir {
		s.Steps = append(s.Steps, Step{Workdir: "/home/user"})
	}
}

// startLine joins ENTRYPOINT and CMD as Docker does.
func startLine(entrypoint, cmd []string) string {
	all := append(slices.Clone(entrypoint), cmd...)
	if len(all) == 3 && all[0] == "/bin/sh" && all[1] == "-c" {
		return all[2] // it is run by a shell anyway
	}
	return quoted(all)
}

// trigger runs the ONBUILD instructions of what the stage begins with.
func (s *stage) trigger(expressions []string, line int) error {
	for _, text := range expressions {
		tree, err := parser.Parse(strings.NewReader(text))
		if err != nil {
			return badf(line, "ONBUILD %s: %w", text, err)
		}
		for _, node := range tree.AST.Children {
			cmd, err := instructions.ParseCommand(node)
			if err != nil {
				return badf(line, "ONBUILD %s: %w", text, err)
			}
			if err := s.command(cmd); err != nil {
				return err
			}
		}
	}
	return nil
}

// variables are what an instruction of this stage may name.
func (s *stage) variables() map[string]string {
	out := maps.Clone(s.args)
	maps.Copy(out, s.env)
	return out
}

// command reads one instruction.
func (s *stage) command(cmd instructions.Command) error {
	line := lineOf(cmd.Location())
	if run, ok := cmd.(*instructions.RunCommand); ok { // its mounts expand, its words do not
		if err := run.Expand(func(w string) (string, error) { return s.r.expand(w, s.variables(), false) }); err != nil {
			return bad(line, err)
		}
		return s.run(run, line)
	}
	if env, ok := cmd.(*instructions.EnvCommand); ok {
		return s.setEnv(env, line)
	}
	if arg, ok := cmd.(*instructions.ArgCommand); ok {
		return s.declare(arg, line)
	}
	if x, ok := cmd.(instructions.SupportsSingleWordExpansion); ok {
		if err := x.Expand(func(w string) (string, error) { return s.r.expand(w, s.variables(), false) }); err != nil {
			return bad(line, err)
		}
	}
	add := func(step Step) error {
		step.Line, step.Text = line, textOf(cmd)
		s.Steps = append(s.Steps, step)
		return nil
	}
	switch c := cmd.(type) {
	case *instructions.WorkdirCommand:
		s.ownDir = true
		if s.dir = path.Join(s.dir, c.Path); path.IsAbs(c.Path) {
			s.dir = path.Clean(c.Path)
		}
		return add(Step{Workdir: s.dir})
	case *instructions.UserCommand:
		s.ownUser, s.user = true, c.User
		return add(Step{User: c.User})
	case *instructions.CopyCommand:
		step, err := s.copy(c, line)
		if err != nil {
			return err
		}
		return add(Step{Copy: step})
	case *instructions.AddCommand:
		step, err := s.add(c, line)
		if err != nil {
			return err
		}
		return add(Step{Copy: step})
	}
	return s.setting(cmd, line)
}

// setting reads an instruction that is about what comes later.
func (s *stage) setting(cmd instructions.Command, line int) error {
	switch c := cmd.(type) {
	case *instructions.ShellCommand:
		s.shell = c.Shell
	case *instructions.CmdCommand:
		s.cmd = s.line(c.ShellDependantCmdLine)
	case *instructions.EntrypointCommand:
		s.entrypoint, s.cmd = s.line(c.ShellDependantCmdLine), nil
	case *instructions.HealthCheckCommand:
		s.Ready = s.check(c.Health.Test)
	case *instructions.OnbuildCommand:
		s.onBuild = append(s.onBuild, c.Expression)
	case *instructions.LabelCommand:
		return s.label(c, line)
	case *instructions.ExposeCommand, *instructions.MaintainerCommand:
		// Every port is reachable.
	case *instructions.VolumeCommand:
		s.r.warn("VOLUME has no effect: all of a sandbox's disk is its own")
	case *instructions.StopSignalCommand:
		s.r.warn("STOPSIGNAL has no effect: a sandbox is paused or ended as a whole")
	default:
		return unsupported(line, "%s is not known here", strings.ToUpper(cmd.Name()))
	}
	return nil
}

// dockerLabel is the one label that is not for registries alone.
const dockerLabel = "cay.docker"

func (s *stage) label(cmd *instructions.LabelCommand, line int) error {
	for _, kv := range cmd.Labels {
		if kv.Key != dockerLabel {
			continue
		}
		on, err := strconv.ParseBool(kv.Value)
		if err != nil {
			return badf(line, "LABEL %s must be true or false, not %.80q", dockerLabel, kv.Value)
		}
		s.Docker = on
	}
	return nil
}

func (s *stage) setEnv(cmd *instructions.EnvCommand, line int) error {
	before := s.variables() // all of one ENV see what was before it
	step := Step{Line: line, Text: textOf(cmd)}
	for _, kv := range cmd.Env {
		value, err := s.r.expand(kv.Value, before, s.open)
		if err != nil {
			return bad(line, err)
		}
		step.Env = append(step.Env, Pair{kv.Key, value})
		if s.open && strings.Contains(value, "$") {
			delete(s.env, kv.Key) // only the builder will know it
			delete(s.args, kv.Key)
			continue
		}
		s.env[kv.Key] = value
	}
	s.Steps = append(s.Steps, step)
	return nil
}

func (s *stage) declare(cmd *instructions.ArgCommand, line int) error {
	for _, a := range cmd.Args {
		given, isGiven := s.r.opts.Args[a.Key]
		global, isGlobal := s.r.global[a.Key]
		switch {
		case isGiven:
			s.args[a.Key] = given
		case a.Value != nil:
			value, err := s.r.expand(*a.Value, s.variables(), false)
			if err != nil {
				return bad(line, err)
			}
			s.args[a.Key] = value
		case isGlobal:
			s.args[a.Key] = global
		}
	}
	return nil
}

// textOf is an instruction as it is written, on one line.
func textOf(cmd instructions.Command) string {
	if s, ok := cmd.(interface{ String() string }); ok {
		first, _, more := strings.Cut(s.String(), "\n")
		if more {
			first += " …"
		}
		return first
	}
	return strings.ToUpper(cmd.Name())
}
