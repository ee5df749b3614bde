"""What the cache saved: from booked requests to numbers, and to one page of HTML. Pure."""

from headstart.report.accounts import Accounts
from headstart.report.page import render_page
from headstart.report.values import Report

__all__ = ["Accounts", "Report", "render_page"]
