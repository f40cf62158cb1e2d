package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

type runCmd struct {
	File       string            `arg:"" optional:"" help:"Script, or - for standard input."`
	Code       string            `short:"c" help:"Code instead of a script; its value is printed."`
	Lang       string            `short:"l" help:"Language [by the script's name, else python]."`
	Template   string            `default:"code-interpreter-v1" help:"Template of the sandbox [code-interpreter-v1]."`
	Env        map[string]string `short:"e" placeholder:"KEY=VALUE" help:"Environment of the code."`
	Timeout    time.Duration     `help:"Interrupt the code after that long."`
	NoInternet bool              `help:"Close the internet to it."`
}

// Help says what it leaves.
func (runCmd) Help() string {
	return "The sandbox is made for it and ends with it. Pictures that the code shows are saved beside the script. " +
		"The exit status is the code's, 1 after an error."
}

// languages by the ends of scripts' names.
var languages = map[string]string{
	".py": "python", ".js": "javascript", ".mjs": "javascript", ".cjs": "javascript", ".ts": "typescript", ".mts": "typescript",
	".r": "r", ".java": "java", ".jsh": "java", ".sh": "bash", ".bash": "bash",
}

// maxScript bounds what is read of a script.
const maxScript = 32 << 20

func (c *runCmd) Run(a *app) error {
	text, err := c.text(a)
	if err != nil {
		return err
	}
	if c.Lang == "" {
		c.Lang = languages[strings.ToLower(filepath.Ext(c.File))]
	}
	if c.Lang == "" {
		c.Lang = "python"
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	var box *client.Sandbox
	err = a.wait("creating a sandbox", func() (err error) {
		box, err = api.Create(a.ctx, client.CreateOptions{Template: c.Template, Timeout: enough, NoInternet: c.NoInternet})
		return err
	})
	if err != nil {
		return err
	}
	defer func() { _ = box.Kill(context.WithoutCancel(a.ctx)) }()
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	go keepAlive(ctx, api, box.ID)
	if c.Timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, c.Timeout)
		defer cancel()
	}
	failed, err := box.RunCode(ctx, client.Code{
		Text: text, Language: c.Lang, Env: c.Env, Stdout: a.out, Stderr: a.err,
		Result: func(r client.CodeResult) error { return c.show(a, r) },
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return cay.Errorf(cay.Unavailable, "the code was not done after %s", unit(c.Timeout)).WithHint("give it longer with --timeout")
	}
	if err != nil {
		return err
	}
	return outcome(a, failed)
}

// text is the code to run.
func (c *runCmd) text(a *app) (string, error) {
	if (c.File == "") == (c.Code == "") {
		return "", cay.Errorf(cay.Invalid, "what is to run?").WithHint("give a script, or code: cay run -c 'print(1)'")
	}
	if c.Code != "" {
		return c.Code, nil
	}
	var in io.Reader = a.in
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return "", cay.Wrap(cay.NotFound, err, "the script cannot be read")
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxScript+1))
	if err != nil {
		return "", cay.Wrap(cay.Invalid, err, "the script cannot be read")
	}
	if len(text) > maxScript {
		return "", cay.Errorf(cay.Invalid, "the script is larger than %d MB", maxScript>>20)
	}
	return string(text), nil
}

// show saves a picture, and prints the value of code from the command line.
func (c *runCmd) show(a *app, r client.CodeResult) error {
	for _, form := range []struct {
		end  string
		data []byte
	}{{".png", r.PNG}, {".jpg", r.JPEG}, {".svg", []byte(r.SVG)}, {".pdf", r.PDF}} {
		if len(form.data) == 0 {
			continue
		}
		name, err := c.save(form.end, form.data)
		if err != nil {
			return cay.Wrap(cay.Internal, err, "a picture cannot be saved")
		}
		fmt.Fprintf(a.err, "saved %s\n", clean(name))
		return nil
	}
	if r.Main && c.Code != "" && r.Text != "" {
		fmt.Fprintln(a.out, r.Text)
	}
	return nil
}

// save writes a file beside the script under the first free number.
func (c *runCmd) save(end string, data []byte) (string, error) {
	stem := strings.TrimSuffix(c.File, filepath.Ext(c.File))
	if c.File == "" || c.File == "-" {
		stem = "picture"
	}
	for n := 1; ; n++ {
		name := fmt.Sprintf("%s-%d%s", stem, n, end)
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		_, err = f.Write(data)
		return name, errors.Join(err, f.Close())
	}
}

// outcome is the exit status for how code ended.
func outcome(a *app, failed *client.CodeError) error {
	if failed == nil {
		return nil
	}
	switch failed.Name {
	case "SystemExit", "ExitCode", "ProcessExit": // Python's; bash's and R's; JavaScript's
		text := failed.Value
		if failed.Name == "ProcessExit" {
			text = strings.TrimSuffix(strings.TrimPrefix(text, "process.exit("), ")")
		}
		if text == "" || text == "None" {
			return nil
		}
		if code, err := strconv.Atoi(text); err == nil {
			return exitStatus(code & 0xff)
		}
		fmt.Fprintln(a.err, failed.Value)
		return exitStatus(1)
	}
	text := strings.TrimRight(failed.Traceback, "\n")
	if text == "" {
		text = failed.Name + ": " + failed.Value
	}
	fmt.Fprintln(a.err, text)
	return exitStatus(1)
}
