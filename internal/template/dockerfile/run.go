package dockerfile

import (
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// run reads a RUN.
func (s *stage) run(cmd *instructions.RunCommand, line int) error {
	secrets, err := s.mounts(cmd, line)
	if err != nil {
		return err
	}
	if instructions.GetSecurity(cmd) == instructions.SecurityInsecure {
		return unsupported(line, "--security=insecure: steps run in a sandbox and stay there")
	}
	if network := instructions.GetNetwork(cmd); network != instructions.NetworkDefault {
		return unsupported(line, "--network=%s: a build has the team's network", network)
	}
	s.Steps = append(s.Steps, Step{
		Line: line, Text: textOf(cmd),
		Run: &Run{Command: s.exports() + s.script(cmd.ShellDependantCmdLine), Secrets: secrets},
	})
	return nil
}

// mounts reads what a RUN wants to see for its time.
func (s *stage) mounts(cmd *instructions.RunCommand, line int) ([]Secret, error) {
	var out []Secret
	for _, m := range instructions.GetMounts(cmd) {
		switch m.Type {
		case instructions.MountTypeSecret:
			out = append(out, secretOf(m))
		case instructions.MountTypeCache, instructions.MountTypeTmpfs:
			s.r.warn("--mount=type=%s is left out: what the command puts there stays in the layer", m.Type)
		default:
			return nil, unsupported(line, "--mount=type=%s: use COPY", m.Type)
		}
	}
	return out, nil
}

func secretOf(m *instructions.Mount) Secret {
	out := Secret{ID: m.CacheID, Target: m.Target, Required: m.Required, Mode: 0o400}
	if m.Mode != nil {
		out.Mode = uint32(*m.Mode) & 0o777
	}
	if m.UID != nil {
		out.UID = int(*m.UID)
	}
	if m.GID != nil {
		out.GID = int(*m.GID)
	}
	if out.ID == "" {
		out.ID = m.Source
	}
	if out.ID == "" && m.Target != "" {
		out.ID = m.Target[strings.LastIndex(m.Target, "/")+1:]
	}
	if m.Env != nil {
		if out.Env = *m.Env; out.Env == "" {
			out.Env = out.ID
		}
		return out
	}
	if out.Target == "" {
		out.Target = "/run/secrets/" + out.ID
	}
	return out
}

// exports gives a command the arguments of the build. Variables of ENV are there
// already, and win.
func (s *stage) exports() string {
	values := map[string]string{}
	for _, name := range undeclared {
		if v, ok := s.r.opts.Args[name]; ok {
			values[name] = v
		}
	}
	for name, v := range s.args {
		values[name] = v
	}
	var names []string
	for name := range values {
		if _, set := s.env[name]; !set {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var out strings.Builder
	for _, name := range names {
		out.WriteString("export " + name + "=" + quote(values[name]) + "\n")
	}
	return out.String()
}

// script is a command line for the shell that runs every step.
func (s *stage) script(l instructions.ShellDependantCmdLine) string {
	if !l.PrependShell {
		return quoted(l.CmdLine)
	}
	text := strings.Join(l.CmdLine, " ")
	if len(l.Files) > 0 {
		text = s.hereDocument(text, l.Files)
	}
	if slices.Equal(s.shell, []string{"/bin/sh", "-c"}) {
		return text
	}
	return quoted(append(slices.Clone(s.shell), text))
}

// hereDocument is RUN <<EOF: with nothing but the marker its text is the
// script, run by what its first line says; else it is what the shell reads.
func (s *stage) hereDocument(text string, files []instructions.ShellInlineFile) string {
	if whole := parser.MustParseHeredoc(strings.TrimSpace(text)); len(files) == 1 && whole != nil {
		body := files[0].Data
		if files[0].Chomp {
			body = parser.ChompHeredocContent(body)
		}
		if !strings.HasPrefix(body, "#!") {
			return body
		}
		const at = "/tmp/.cay-heredoc"
		return "cat >" + at + " <<'CAY-HEREDOC-END'\n" + strings.TrimSuffix(body, "\n") + "\nCAY-HEREDOC-END\n" +
			"chmod 700 " + at + " && " + at + "; s=$?; rm -f " + at + "; exit $s"
	}
	var out strings.Builder
	out.WriteString(text + "\n")
	for _, f := range files {
		out.WriteString(f.Data + f.Name + "\n")
	}
	return out.String()
}

// line is a CMD or ENTRYPOINT as arguments.
func (s *stage) line(l instructions.ShellDependantCmdLine) []string {
	if !l.PrependShell {
		return slices.Clone(l.CmdLine)
	}
	return append(slices.Clone(s.shell), strings.Join(l.CmdLine, " "))
}

// check is a HEALTHCHECK as a command line.
func (s *stage) check(test []string) string {
	switch {
	case len(test) < 2:
		return "" // NONE
	case test[0] == "CMD-SHELL":
		return test[1]
	}
	return quoted(test[1:])
}

func quoted(args []string) string {
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = quote(a)
	}
	return strings.Join(out, " ")
}

// quote makes a word of a shell. Plain ones stay readable.
func quote(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=@%+,"
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
