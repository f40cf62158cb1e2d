package proc

import (
	"strings"
	"testing"
)

func TestTooLong(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	many := make([]string, 17)
	for i := range many {
		many[i] = "V=" + long(maxArgument-3)
	}
	for name, c := range map[string]struct {
		args, env []string
		want      string
	}{
		"fits":        {[]string{"sh", long(maxArgument - 1)}, []string{"A=" + long(maxArgument-3)}, ""},
		"command":     {[]string{"sh", "-c", long(maxArgument)}, nil, "the command is too long: it has a part of 131072 bytes"},
		"environment": {[]string{"sh"}, []string{"BIG=" + long(maxArgument-4)}, "the environment variable BIG is too long: with its name it has 131072 bytes"},
		"together":    {[]string{"sh"}, many, "together they have"},
	} {
		err := tooLong(c.args, c.env)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %.200v, want %q", name, err, c.want)
		}
	}
}
