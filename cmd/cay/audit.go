package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/control/audit"
	"github.com/cay-run/cay/internal/operator"
)

type auditCmd struct {
	List   auditListCmd   `cmd:"" default:"withargs" help:"List what was done, the newest first."`
	Verify auditVerifyCmd `cmd:"" help:"Look whether rows were changed, put in, taken out or cut off."`
	Export auditExportCmd `cmd:"" help:"Write all of the log as lines of JSON."`
	Key    auditKeyCmd    `cmd:"" help:"Print the public key that signs the log's heads."`
}

type auditListCmd struct {
	Actor  string    `help:"Only of this key, person or sandbox, by id."`
	Action string    `help:"Only this action, as sandbox.created."`
	Target string    `help:"Only what was done to this."`
	From   time.Time `help:"Only from this time on, as 2026-11-23T15:04:05Z." format:"2006-01-02T15:04:05Z07:00"`
	To     time.Time `help:"Only before this time." format:"2006-01-02T15:04:05Z07:00"`
	All    bool      `help:"Of every team; for an admin."`
	Team   string    `help:"With --all, only of this team, by id."`
	Limit  int       `short:"n" default:"100" help:"At most this many rows; 0 for all."`
}

// Help says what a row is.
func (auditListCmd) Help() string {
	return "Rows of your team, with the scope audit:read. Frequent actions, as in a sandbox, are counted by the minute: times says how often. " +
		"With --json each row is a line of its own."
}

func (c *auditListCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	if c.Team != "" && !c.All {
		return cay.Errorf(cay.Invalid, "--team goes with --all")
	}
	n := 0
	for r, err := range api.Audit(a.ctx, client.AuditOptions{
		All: c.All, Team: c.Team, Actor: c.Actor, Action: c.Action, Target: c.Target, From: c.From, To: c.To,
	}) {
		if err != nil {
			return err
		}
		if err := a.printAudit(r); err != nil {
			return err
		}
		if n++; n == c.Limit {
			break
		}
	}
	return nil
}

func (a *app) printAudit(r client.AuditRow) error {
	if a.json {
		r.At = r.At.UTC()
		return json.NewEncoder(a.out).Encode(r)
	}
	by := r.Actor.Kind
	if r.Actor.ID != "" {
		by += " " + r.Actor.ID
	}
	if r.Actor.Name != "" {
		by += " (" + r.Actor.Name + ")"
	}
	words := []string{r.At.Local().Format(time.DateTime), fmt.Sprintf("%-6d", r.Seq), r.Outcome, " " + r.Action}
	if r.Target != "" {
		words = append(words, r.Target)
	}
	words = append(words, " by "+by)
	if r.Address != "" {
		words = append(words, "from "+r.Address)
	}
	if data := pairs(r.Details); data != "" {
		words = append(words, " "+data)
	}
	_, err := fmt.Fprintln(a.out, clean(strings.Join(words, " ")))
	return err
}

type auditVerifyCmd struct {
	File    string   `arg:"" optional:"" help:"An export; the server's own log when absent."`
	Against []string `help:"Files of signed heads that were kept elsewhere." placeholder:"FILE"`
	Key     string   `help:"The key that must have signed it, as cay audit key prints."`
}

// Help says what it can know.
func (auditVerifyCmd) Help() string {
	return "Without a file, on the server's machine, as root. Ends with status 1 and names the first row that is not as it was written. " +
		"A log that was written anew from its start, or lost its end, shows only against heads that were kept elsewhere."
}

func (c *auditVerifyCmd) Run(a *app) error {
	with := audit.Against{Key: c.Key}
	for _, name := range c.Against {
		heads, err := readHeads(name)
		if err != nil {
			return err
		}
		with.Heads = append(with.Heads, heads...)
	}
	var found audit.Verified
	err := c.read(a, func(r io.Reader) (err error) {
		found, err = audit.Verify(r, with)
		return err
	})
	if err != nil {
		return err
	}
	if a.json {
		err = a.printJSON(found)
	} else {
		_, err = fmt.Fprintln(a.out, verdict(found))
	}
	if found.Broken != nil {
		err = errors.Join(err, exitStatus(1))
	}
	return err
}

// read has the log read: the file's, or the server's own.
func (c *auditVerifyCmd) read(a *app, read func(io.Reader) error) error {
	if c.File == "" {
		cfg, err := a.config()
		if err != nil {
			return err
		}
		return operator.Ask(cfg).Audit(a.ctx, read)
	}
	f, err := os.Open(c.File)
	if err != nil {
		return cay.Wrap(cay.NotFound, err, "cannot read %s", c.File)
	}
	defer f.Close()
	return read(f)
}

func readHeads(name string) ([]cay.AuditHead, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, cay.Wrap(cay.NotFound, err, "cannot read the heads %s", name)
	}
	defer f.Close()
	heads, err := audit.ReadHeads(f)
	if err == nil && len(heads) == 0 {
		err = cay.Errorf(cay.Invalid, "%s has no heads", name)
	}
	return heads, err
}

// verdict says in a line what was found.
func verdict(v audit.Verified) string {
	if v.Broken != nil {
		return "broken: " + clean(v.Broken.Why)
	}
	text := fmt.Sprintf("whole: %d rows, %d to %d; %d heads fit, signed up to row %d with %s", v.Rows, v.First, v.Last, v.Heads, v.Signed, clean(v.Key))
	if v.Unproven > 0 {
		text += fmt.Sprintf("; %d heads are of rows that were dropped", v.Unproven)
	}
	return text
}

type auditExportCmd struct {
	File string `arg:"" optional:"" help:"New file; standard output when absent."`
}

// Help says where.
func (auditExportCmd) Help() string {
	return "On the server's machine, as root. It has the rows of all teams, with the signed heads between them: cay audit verify FILE needs no server."
}

func (c *auditExportCmd) Run(a *app) (err error) {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	out := a.out
	if c.File != "" {
		f, err := os.OpenFile(c.File, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			return cay.Errorf(cay.Conflict, "%s exists", c.File).WithHint("choose another name")
		}
		if err != nil {
			return cay.Wrap(cay.Invalid, err, "cannot write %s", c.File)
		}
		defer func() { err = errors.Join(err, f.Sync(), f.Close()) }()
		out = f
	}
	return operator.Ask(cfg).Audit(a.ctx, func(r io.Reader) error {
		_, err := io.Copy(out, r)
		return err
	})
}

type auditKeyCmd struct{}

func (auditKeyCmd) Run(a *app) error {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	key, err := operator.Ask(cfg).AuditKey(a.ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]string{"key": key})
	}
	_, err = fmt.Fprintln(a.out, key)
	return err
}
