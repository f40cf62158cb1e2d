package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/cli/text"
)

type approvalsCmd struct {
	List    approvalsListCmd    `cmd:"" aliases:"ls" help:"List what waits for a decision."`
	Show    approvalsShowCmd    `cmd:"" help:"Show an approval in full."`
	Approve approvalsApproveCmd `cmd:"" help:"Say yes."`
	Deny    approvalsDenyCmd    `cmd:"" help:"Say no."`
	Ask     approvalsAskCmd     `cmd:"" help:"Ask for a decision, and wait for it: the exit status is 0 for a yes alone."`
}

type approvalsListCmd struct {
	ofTeam
	All     bool   `help:"Also those that are over, of the last 30 days."`
	Sandbox string `short:"s" help:"Only of this sandbox."`
	Limit   int    `default:"100" help:"How many at most."`
}

func (c *approvalsListCmd) Run(a *app) error {
	api, err := a.inTeam(c.Team)
	if err != nil {
		return err
	}
	o := client.ApprovalOptions{SandboxID: c.Sandbox, Limit: c.Limit}
	if !c.All {
		o.State = "pending"
	}
	list, err := api.Approvals(a.ctx, o)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(append([]client.Approval{}, list...))
	}
	t := table{header: []string{"ID", "STATE", "KIND", "RISK", "SANDBOX", "ENDS", "TITLE"}}
	for _, x := range list {
		t.add(clean(x.ID), clean(x.State), clean(x.Kind), clean(x.Risk), clean(or(x.SandboxID, "–")), ago(x.ExpiresAt, time.Now()), clean(x.Title))
	}
	t.print(a.out, width(a.out))
	return nil
}

type approvalsShowCmd struct {
	ofTeam
	Approval string `arg:"" help:"Its id."`
}

func (c *approvalsShowCmd) Run(a *app) error {
	api, err := a.inTeam(c.Team)
	if err != nil {
		return err
	}
	x, err := api.Approval(a.ctx, c.Approval, 0)
	if err != nil {
		return err
	}
	return showApproval(a, x)
}

func showApproval(a *app, x client.Approval) error {
	if a.json {
		return a.printJSON(x)
	}
	rows := [][2]string{
		{"id", x.ID}, {"state", x.State}, {"kind", x.Kind}, {"subject", x.Subject}, {"title", x.Title}, {"risk", x.Risk}, {"sandbox", x.SandboxID},
		{"asked by", party(x.AskedBy)}, {"asked", x.CreatedAt.Local().Format(time.DateTime)}, {"ends", x.ExpiresAt.Local().Format(time.DateTime)},
	}
	if x.DecidedBy != nil {
		rows = append(rows, [2]string{"decided by", party(*x.DecidedBy)}, [2]string{"decided", x.DecidedAt.Local().Format(time.DateTime)})
	}
	rows = append(rows, [2]string{"remember", x.Remember}, [2]string{"note", x.Note})
	for _, row := range rows {
		if row[1] != "" {
			fmt.Fprintf(a.out, "%-10s %s\n", row[0], clean(row[1]))
		}
	}
	if x.Body != "" {
		fmt.Fprintf(a.out, "\n%s\n", strings.TrimRight(text.CleanLines(x.Body), "\n"))
	}
	return nil
}

// party is an actor in words.
func party(x client.AuditActor) string {
	return strings.Join(strings.Fields(x.Kind+" "+or(x.Name, x.ID)), " ")
}

// decisionFlags are those of both answers.
type decisionFlags struct {
	ofTeam
	Approval string `arg:"" help:"Its id."`
	Remember string `enum:"once,hour,sandbox" default:"once" help:"For how long the answer counts for the same question: once, an hour, or the sandbox's life."`
	Note     string `help:"A note for the party that asks."`
}

func (f decisionFlags) decide(a *app, approve bool) error {
	api, err := a.inTeam(f.Team)
	if err != nil {
		return err
	}
	x, err := api.DecideApproval(a.ctx, f.Approval, approve, f.Remember, f.Note)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(x)
	}
	fmt.Fprintln(a.out, clean(x.State))
	return nil
}

type approvalsApproveCmd struct{ decisionFlags }

func (c *approvalsApproveCmd) Run(a *app) error { return c.decide(a, true) }

type approvalsDenyCmd struct{ decisionFlags }

func (c *approvalsDenyCmd) Run(a *app) error { return c.decide(a, false) }

type approvalsAskCmd struct {
	Title   string        `arg:"" help:"The question, in one line."`
	Body    string        `help:"The work in full."`
	Risk    string        `enum:"low,medium,high" default:"medium" help:"The risk: low, medium or high."`
	Sandbox string        `short:"s" help:"The sandbox that it is about."`
	Timeout time.Duration `default:"15m" help:"No decision within this time is a no."`
	NoWait  bool          `help:"Print the id and do not wait."`
}

// askAgain is how long one request waits for a decision.
const askAgain = 50 * time.Second

func (c *approvalsAskCmd) Run(a *app) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	x, err := api.AskApproval(a.ctx, client.NewApproval{Title: c.Title, Body: c.Body, Risk: c.Risk, SandboxID: c.Sandbox, Timeout: c.Timeout})
	if err != nil {
		return err
	}
	if c.NoWait {
		if a.json {
			return a.printJSON(x)
		}
		fmt.Fprintln(a.out, clean(x.ID))
		return nil
	}
	if !a.json {
		fmt.Fprintf(a.err, "%s waits for a decision\n", clean(x.ID))
	}
	for x.Pending() {
		if x, err = api.Approval(a.ctx, x.ID, askAgain); err != nil {
			return err
		}
	}
	if err := showDecision(a, x); err != nil {
		return err
	}
	if x.State != "approved" {
		return exitStatus(1)
	}
	return nil
}

func showDecision(a *app, x client.Approval) error {
	if a.json {
		return a.printJSON(x)
	}
	fmt.Fprintln(a.out, clean(x.State))
	if x.Note != "" {
		fmt.Fprintln(a.err, clean(x.Note))
	}
	return nil
}
