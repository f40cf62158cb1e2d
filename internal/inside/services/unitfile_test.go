package services

import (
	"slices"
	"strings"
	"testing"
	"time"
)

const sample = `
# a comment
[Unit]
Description=A thing %i
After=b.service \
  # within a line
  c.service
[Service]
Type=forking
Environment="A=1 2" B=3
Environment=C=%I
ExecStartPre=-/bin/false "with $A" ${B} $$
ExecStart=
ExecStart=@/bin/echo name -n 'a b' \x41 ; /bin/true
no setting
[Install]
WantedBy=multi-user.target
`

func TestReadUnit(t *testing.T) {
	u := &unit{name: "a@x-y.service", kind: "service", load: loaded, set: sections{}, expand: expander("a@x-y.service")}
	u.set.read(sample)
	if got := u.names("After"); !slices.Equal(got, []string{"b.service", "c.service"}) {
		t.Errorf("After %q", got)
	}
	if got := u.description(); got != "A thing x-y" {
		t.Errorf("description %q", got)
	}
	u.set.add("Service", "Type", "oneshot") // which may have several programs
	c, err := u.service()
	if err != nil {
		t.Fatal(err)
	}
	if c.env["A"] != "1 2" || c.env["B"] != "3" || c.env["C"] != "x/y" {
		t.Errorf("environment %q", c.env)
	}
	pre := c.exec["ExecStartPre"][0]
	if got := pre.with(c.env); !pre.ignore || !slices.Equal(got, []string{"/bin/false", "with $A", "3", "$"}) {
		t.Errorf("ExecStartPre %+v, %q", pre, got)
	}
	start := c.exec["ExecStart"]
	if len(start) != 2 || start[0].path != "/bin/echo" || !slices.Equal(start[0].args, []string{"name", "-n", "a b", "A"}) || start[1].path != "/bin/true" {
		t.Errorf("ExecStart %+v", start)
	}
}

func TestVariablesInCommands(t *testing.T) {
	env := map[string]string{"ONE": "a b", "TWO": "c"}
	for line, want := range map[string][]string{
		"/p $ONE ${ONE} x$TWO x${TWO}y":    {"/p", "a", "b", "a b", "x$TWO", "xcy"},
		`/p "$ONE" $NONE ${NONE} "x $ONE"`: {"/p", "a", "b", "", "x $ONE"},
		":/p $ONE":                         {"/p", "$ONE"},
		"/p 100% $":                        {"/p", "100%", "$"},
	} {
		all, err := commands([]string{line}, func(s string) string { return s })
		if err != nil || len(all) != 1 {
			t.Fatalf("%q: %v, %v", line, all, err)
		}
		if got := all[0].with(env); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
	for _, line := range []string{`/p "open`, "-", "@/p", "/p ; ;"} {
		if got, err := commands([]string{line}, func(s string) string { return s }); err == nil {
			t.Errorf("%q is %+v", line, got)
		}
	}
}

func TestSpan(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"5": 5 * time.Second, "100ms": 100 * time.Millisecond, "1min 30s": 90 * time.Second, "1h": time.Hour, "infinity": 0, "0": 0, "1.5s": 1500 * time.Millisecond,
	} {
		if got, err := span(text); err != nil || got != want {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "x", "-1", "1parsec", "99999999999999999999h"} {
		if got, err := span(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]bool{
		"a.service": true, "a@b.service": true, `dev-x\x2d1.device`: true, "a": false, "../a.service": false, "a/b.service": false, ".service": false,
		"-a.service": false, "a b.service": false, "a.conf": false, strings.Repeat("a", 300) + ".service": false,
	} {
		if got := validName(name); got != want {
			t.Errorf("%q is valid: %v", name, got)
		}
	}
	if template, instance := instanceOf("postgresql@15-main.service"); template != "postgresql@.service" || instance != "15-main" {
		t.Errorf("%q, %q", template, instance)
	}
}

// FuzzUnit reads any text as a unit file: nothing of it may end PID 1.
func FuzzUnit(f *testing.F) {
	f.Add("a@b.service", sample)
	f.Add("a.service", "[Service]\nType=notify\nExecStart=/a %% %q \\\nRestart=always\nRestartSec=9\nKillSignal=SIGQUIT\nTimeoutSec=infinity\n")
	f.Add("a.service", "[Service]\nExecStart=-@:+!/a \"b\\x4\\u00e9\\777 ${A} $B ; c\nUMask=0007\nLimitNOFILE=1:2\nRuntimeDirectory=../../x a\n")
	f.Fuzz(func(t *testing.T, name, text string) {
		if !validName(name) {
			return
		}
		u := &unit{name: name, kind: kindOf(name), load: loaded, set: sections{}, expand: expander(name)}
		u.set.read(text)
		u.names("After", "Requires")
		c, err := u.service()
		if err != nil {
			return
		}
		for _, all := range c.exec {
			for _, one := range all {
				if one.path == "" || len(one.args) == 0 {
					t.Errorf("a command without a program: %+v", one)
				}
				one.with(map[string]string{"A": "b c"})
			}
		}
		for _, d := range c.dirs {
			if strings.Contains(d.path, "..") && !strings.Contains(d.path, "...") && strings.Contains("/"+d.path+"/", "/../") {
				t.Errorf("a directory elsewhere: %s", d.path)
			}
		}
		readEnv(text, map[string]string{})
		parseEntry(text, name)
	})
}
