"""The samples page: responses of one prompt side by side, compared with another step or another arm.

Page, text differences, template, stylesheet and script of this page only; other pages may not import it.
"""
