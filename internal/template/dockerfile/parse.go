package dockerfile

import (
	"bytes"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/cay-run/cay"
)

// Most is the size of a Dockerfile in bytes that is read.
const Most = 1 << 20

// Options are what a build is told beside the Dockerfile.
type Options struct {
	Args   map[string]string // --build-arg
	Target string            // --target: a stage's name or number; the last one when empty
	// OnBuild returns the ONBUILD instructions of an image; nil for none.
	OnBuild func(image string) ([]string, error)
}

// Parse reads a Dockerfile. Errors are Invalid or Unsupported and name the line.
func Parse(text []byte, opts Options) (Plan, error) {
	if len(text) > Most {
		return Plan{}, cay.Errorf(cay.Invalid, "the Dockerfile is larger than %d bytes", Most)
	}
	tree, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		return Plan{}, bad(0, err)
	}
	stages, global, err := instructions.Parse(tree.AST, nil)
	if err != nil {
		return Plan{}, bad(0, err)
	}
	r := &reader{opts: opts, stages: stages, lex: shell.NewLex(tree.EscapeToken), indexes: map[int]int{}, images: map[string]int{}}
	if r.global, err = r.globalArgs(global); err != nil {
		return Plan{}, err
	}
	target, err := r.target()
	if err != nil {
		return Plan{}, err
	}
	if _, err := r.need(target); err != nil {
		return Plan{}, err
	}
	return r.plan, nil
}

// bad is a mistake in the Dockerfile.
func bad(line int, err error) error {
	if line > 0 {
		return cay.Wrap(cay.Invalid, err, "Dockerfile line %d: %v", line, err)
	}
	return cay.Wrap(cay.Invalid, err, "the Dockerfile is wrong: %v", err)
}

func badf(line int, format string, args ...any) error { return bad(line, fmt.Errorf(format, args...)) }

func unsupported(line int, format string, args ...any) error {
	return cay.Errorf(cay.Unsupported, "Dockerfile line %d: %s", line, fmt.Sprintf(format, args...))
}

// reader works through a Dockerfile.
type reader struct {
	opts    Options
	stages  []instructions.Stage
	lex     *shell.Lex
	global  map[string]string // arguments before the first FROM
	plan    Plan
	done    []*stage
	indexes map[int]int    // of a stage in the Dockerfile → in the plan; -1 while it is read
	images  map[string]int // stages that only lend files of an image
}

// platformArgs are set by the builder; a stage that wants one declares it.
func platformArgs() map[string]string {
	platform := "linux/" + runtime.GOARCH
	out := map[string]string{}
	for _, side := range []string{"TARGET", "BUILD"} {
		out[side+"PLATFORM"], out[side+"OS"], out[side+"ARCH"], out[side+"VARIANT"] = platform, "linux", runtime.GOARCH, ""
	}
	return out
}

// undeclared are arguments that need no ARG.
var undeclared = strings.Fields("HTTP_PROXY http_proxy HTTPS_PROXY https_proxy FTP_PROXY ftp_proxy NO_PROXY no_proxy ALL_PROXY all_proxy")

func (r *reader) globalArgs(args []instructions.ArgCommand) (map[string]string, error) {
	out := platformArgs()
	for _, cmd := range args {
		for _, a := range cmd.Args {
			if given, ok := r.opts.Args[a.Key]; ok {
				out[a.Key] = given
				continue
			}
			if a.Value == nil {
				continue
			}
			value, err := r.expand(*a.Value, out, false)
			if err != nil {
				return nil, bad(lineOf(cmd.Location()), err)
			}
			out[a.Key] = value
		}
	}
	return out, nil
}

func lineOf(ranges []parser.Range) int {
	if len(ranges) == 0 {
		return 0
	}
	return ranges[0].Start.Line
}

// vars makes a map what the lexer reads.
type vars map[string]string

func (v vars) Get(name string) (string, bool) { value, ok := v[name]; return value, ok }
func (v vars) Keys() []string                 { return slices.Collect(maps.Keys(v)) }

// expand replaces variables. With keep, unset variables stay as they
// are written: the image may set them.
func (r *reader) expand(word string, env map[string]string, keep bool) (string, error) {
	r.lex.SkipUnsetEnv = keep
	out, _, err := r.lex.ProcessWord(word, vars(env))
	return out, err
}

// target returns the index of the stage that is asked for.
func (r *reader) target() (int, error) {
	if len(r.stages) == 0 {
		return 0, cay.Errorf(cay.Invalid, "the Dockerfile has no FROM")
	}
	if r.opts.Target == "" {
		return len(r.stages) - 1, nil
	}
	if i := r.lookup(r.opts.Target, len(r.stages)); i >= 0 {
		return i, nil
	}
	return 0, cay.Errorf(cay.Invalid, "the Dockerfile has no stage %q", r.opts.Target)
}

// lookup finds a stage before another by name, else by number; -1 for none.
func (r *reader) lookup(name string, before int) int {
	for i := before - 1; i >= 0; i-- {
		if r.stages[i].Name != "" && strings.EqualFold(r.stages[i].Name, name) {
			return i
		}
	}
	if n, err := strconv.Atoi(name); err == nil && n >= 0 && n < before {
		return n
	}
	return -1
}

// need reads a stage and all that it needs, and returns its place in the plan.
func (r *reader) need(index int) (int, error) {
	if at, ok := r.indexes[index]; ok {
		return at, nil
	}
	s, err := r.begin(index)
	if err != nil {
		return 0, err
	}
	for _, cmd := range r.stages[index].Commands {
		if err := s.command(cmd); err != nil {
			return 0, err
		}
	}
	s.finish()
	r.indexes[index] = r.put(s)
	return r.indexes[index], nil
}

func (r *reader) put(s *stage) int {
	r.plan.Stages = append(r.plan.Stages, s.Stage)
	r.done = append(r.done, s)
	return len(r.plan.Stages) - 1
}

// lend returns a stage that is only an image, to copy from.
func (r *reader) lend(image string) int {
	at, ok := r.images[image]
	if !ok {
		at = r.put(&stage{Stage: Stage{Name: image, From: From{Image: image, Stage: -1}}})
		r.images[image] = at
	}
	return at
}

func (r *reader) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(r.plan.Warnings, text) {
		r.plan.Warnings = append(r.plan.Warnings, text)
	}
}

// begin makes a stage up to its FROM.
func (r *reader) begin(index int) (*stage, error) {
	in := r.stages[index]
	line := lineOf(in.Location)
	name := in.Name
	if name == "" {
		name = strconv.Itoa(index)
	}
	s := &stage{
		r: r, index: index,
		Stage: Stage{Name: name, From: From{Stage: -1}},
		args:  map[string]string{}, env: map[string]string{}, open: true,
		shell: []string{"/bin/sh", "-c"},
	}
	if err := r.platform(in, line); err != nil {
		return nil, err
	}
	base, err := r.expand(in.BaseName, r.global, false)
	if err != nil {
		return nil, bad(line, err)
	}
	switch {
	case base == "":
		return nil, badf(line, "FROM %s names no image: a variable is empty", in.BaseName)
	case strings.EqualFold(base, "scratch"):
		return nil, unsupported(line, "FROM scratch has no shell, and a sandbox needs one")
	}
	var triggers []string
	if i := r.lookup(base, index); i >= 0 {
		if s.From.Stage, err = r.need(i); err != nil {
			return nil, err
		}
		triggers = s.inherit(r.done[s.From.Stage])
	} else {
		s.From.Image = base
		s.begin("root", "/")
		if r.opts.OnBuild != nil {
			if triggers, err = r.opts.OnBuild(base); err != nil {
				return nil, err
			}
		}
	}
	return s, s.trigger(triggers, line)
}

// platform refuses a stage that is made for another machine.
func (r *reader) platform(in instructions.Stage, line int) error {
	want, err := r.expand(in.Platform, r.global, false)
	if err != nil {
		return bad(line, err)
	}
	if here := "linux/" + runtime.GOARCH; want != "" && want != here {
		return unsupported(line, "--platform=%s: this machine is %s", want, here)
	}
	return nil
}
